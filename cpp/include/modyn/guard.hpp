// Safe access to maps of users' files: touching a map of a file that was cut raises SIGBUS, which would end the process.
#pragma once

namespace modyn {

// Calls run(context) on this thread. Returns false if it met SIGBUS and was left in the middle. It is not unwound, so `run` must own nothing (no
// allocation, no lock, no object with a destructor). Several threads may run guards at once, and guards may be nested: the innermost one is
// left. Faults elsewhere, and sent signals, go to the handler of SIGBUS that was installed before.
bool survives_bus_error(void (*run)(void*), void* context);

// Does the same for a callable.
template <typename Run>
bool survives_bus_error(Run& run) {
  return survives_bus_error([](void* callable) { (*static_cast<Run*>(callable))(); }, &run);
}

}  // namespace modyn
