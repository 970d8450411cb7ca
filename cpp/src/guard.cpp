#include "modyn/guard.hpp"

#include <atomic>
#include <csetjmp>
#include <csignal>
#include <forward_list>
#include <mutex>

namespace modyn {
namespace {

// Where this thread continues after a fault; null outside of guarded code. initial-exec: other models may allocate at the first access, which a
// signal handler must not do.
[[gnu::tls_model("initial-exec")]] thread_local sigjmp_buf* escape = nullptr;

// The handler of SIGBUS before ours; null after it was restored.
std::atomic<const struct sigaction*> previous{nullptr};
static_assert(std::atomic<const struct sigaction*>::is_always_lock_free, "a signal handler must not wait");
std::mutex installing;

void handle(int signal, siginfo_t* info, void* /*context*/) {
  const bool from_kernel = info->si_code > 0;
  if (from_kernel && escape != nullptr) siglongjmp(*escape, 1);
  // The fault is outside of guards. Restore the previous handler permanently instead of calling it: a call could loop, because the previous
  // handler may put ours back when it gives up (as Python's faulthandler does). In this case it has already run, and the default handler is next.
  struct sigaction standard {};
  standard.sa_handler = SIG_DFL;
  const struct sigaction* const next = previous.exchange(nullptr);
  sigaction(signal, next != nullptr ? next : &standard, nullptr);
  if (!from_kernel) raise(signal);  // a fault need not be raised: the instruction is repeated
}

// Other handlers may be installed at any time (faulthandler, pytest), so the present one is read each time: one cheap system call.
void install() {
  struct sigaction now {};
  const auto is_ours = [&now] {
    sigaction(SIGBUS, nullptr, &now);
    return (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == &handle;
  };
  if (is_ours()) return;
  const std::lock_guard lock(installing);
  if (is_ours()) return;
  // Never freed, even at the end of the process: a handler on another thread may be reading it. There are few: one for each time that another
  // handler replaced ours.
  static auto& kept = *new std::forward_list<struct sigaction>;
  previous = &kept.emplace_front(now);  // set before our handler is installed, which may need it immediately
  struct sigaction ours {};
  ours.sa_sigaction = &handle;
  ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&ours.sa_mask);
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace

bool survives_bus_error(void (*run)(void*), void* context) {
  install();
  // If the signal is blocked, a fault ends the process without calling any handler.
  sigset_t bus, before;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &bus, &before);
  sigjmp_buf here;
  sigjmp_buf* const outer = escape;  // guarded code may call guarded code
  if (sigsetjmp(here, 0) != 0) {
    escape = outer;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);  // the jump left a handler, in which at least SIGBUS is blocked
    return false;
  }
  escape = &here;
  run(context);
  escape = outer;
  if (sigismember(&before, SIGBUS) == 1) pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

}  // namespace modyn
