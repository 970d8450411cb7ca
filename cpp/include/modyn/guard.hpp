// Safe access to maps of users' files: reading a map of a truncated file raises SIGBUS, which would end the process.
#pragma once

namespace modyn {

// Calls run(context) on this thread. Returns false if SIGBUS interrupted the call. The stack is not unwound, so `run` must own nothing (no
// allocation, no lock, no object with a destructor). Several threads may run guards at once, and guards may be nested: SIGBUS ends the innermost
// call. The previously installed handler receives SIGBUS from faults outside of guards and from other processes.
bool survives_bus_error(void (*run)(void*), void* context);

// Like the function above, for a callable.
template <typename Run>
bool survives_bus_error(Run& run) {
  return survives_bus_error([](void* callable) { (*static_cast<Run*>(callable))(); }, &run);
}

}  // namespace modyn
