#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <filesystem>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "modyn/file.hpp"
#include "modyn/guard.hpp"
#include "testing.hpp"

namespace {

constexpr std::size_t page = 4096;

// A map of two pages of a file that now has only one.
class CutMap {
 public:
  explicit CutMap(const TemporaryFolder& folder) {
    const auto path = folder.write("cut", std::string(2 * page, 'x'));
    map_ = modyn::File(path).map(2 * page);
    std::filesystem::resize_file(path, page);
  }
  int sum(std::size_t bytes) const {
    int total = 0;
    for (std::size_t i = 0; i < bytes; ++i) total += *static_cast<const volatile std::uint8_t*>(map_.get() + i);
    return total;
  }

 private:
  std::shared_ptr<const std::uint8_t> map_;
};

bool survives(const CutMap& map, std::size_t bytes) {
  int sum = 0;
  auto run = [&] { sum = map.sum(bytes); };
  return modyn::survives_bus_error(run);
}

std::atomic<int> handled{0};

// Runs `body` in a child process, and returns the signal that ends the process.
template <typename Body>
int ending_signal(const Body& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("touching what was cut off is survived, again and again, on many threads") {
  const TemporaryFolder folder;
  const CutMap map(folder);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 8; ++thread) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 50; ++turn) wrong += !survives(map, page) || survives(map, 2 * page);
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("a guard within another one leaves the other in place") {
  const TemporaryFolder folder;
  const CutMap map(folder);
  for (const bool inner_faults : {false, true}) {
    bool inner = inner_faults;
    auto outer = [&] {
      inner = survives(map, inner_faults ? 2 * page : page);
      map.sum(2 * page);
    };
    CHECK_FALSE(modyn::survives_bus_error(outer));
    CHECK(inner == !inner_faults);
  }
}

TEST_CASE("a thread that blocks the signal survives touching what was cut off, and continues to block it") {
  const TemporaryFolder folder;
  const CutMap map(folder);
  bool survived[2] = {false, true};
  bool blocked[2] = {false, false};
  std::thread([&] {
    sigset_t all, now;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (const std::size_t pages : {1, 2}) {
      survived[pages - 1] = survives(map, pages * page);
      pthread_sigmask(SIG_BLOCK, nullptr, &now);
      blocked[pages - 1] = sigismember(&now, SIGBUS) == 1;
    }
  }).join();
  CHECK(survived[0]);
  CHECK_FALSE(survived[1]);
  CHECK(blocked[0]);
  CHECK(blocked[1]);
}

TEST_CASE("the handler that was installed before gets other faults, and is replaced again when needed") {
  const TemporaryFolder folder;
  const CutMap map(folder);
  struct sigaction counting {};
  struct sigaction before {};
  counting.sa_handler = [](int) { ++handled; };
  sigaction(SIGBUS, &counting, &before);
  CHECK_FALSE(survives(map, 2 * page));
  CHECK(handled == 0);
  raise(SIGBUS);  // a sent signal, not a fault
  CHECK(handled == 1);
  CHECK_FALSE(survives(map, 2 * page));
  CHECK(handled == 1);
  sigaction(SIGBUS, &before, nullptr);
  CHECK_FALSE(survives(map, 2 * page));
}

// Sanitizers have their own handler for what follows.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("a fault outside of the guard ends the process as it would without it") {
  const TemporaryFolder folder;
  const CutMap map(folder);
  const auto fault = [&] {
    signal(SIGBUS, SIG_DFL);
    if (!survives(map, 2 * page)) map.sum(2 * page);
  };
  CHECK(ending_signal(fault) == SIGBUS);
  // Like Python's faulthandler, this handler is installed over ours, restores its predecessor and tries again: it must not loop.
  const auto fault_with_handler_over_ours = [&] {
    signal(SIGBUS, SIG_DFL);
    survives(map, 2 * page);
    static struct sigaction ours {};
    struct sigaction dumping {};
    dumping.sa_handler = [](int number) {
      sigaction(number, &ours, nullptr);
      raise(number);
    };
    dumping.sa_flags = SA_NODEFER;
    sigaction(SIGBUS, &dumping, &ours);
    survives(map, 2 * page);
    ::alarm(10);
    map.sum(2 * page);
  };
  CHECK(ending_signal(fault_with_handler_over_ours) == SIGBUS);
}
#endif
