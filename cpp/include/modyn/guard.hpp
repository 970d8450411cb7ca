// Touching mapped files of others: a map of a file that was cut raises SIGBUS, which would end the process.
#pragma once

namespace modyn {

// Calls run(context) on this thread; false if it met SIGBUS and was left in the middle. What it leaves is not unwound: `run` must own
// nothing (no allocation, no lock, no object with a destructor). Any number of threads at once, and of guards
// within one another: the innermost one is left. Faults elsewhere, and signals that
// are sent, go on to the handler of SIGBUS that was installed before.
bool survives_bus_error(void (*run)(void*), void* context);

// The same for a callable.
template <typename Run>
bool survives_bus_error(Run& run) {
  return survives_bus_error([](void* callable) { (*static_cast<Run*>(callable))(); }, &run);
}

}  // namespace modyn
