#include "engine/run/failure.h"

#include "schedules/base/error.h"

namespace stagecraft {

Failure failure_of(const std::exception_ptr& error) noexcept {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const InputError& e) {
      return {2, e.what()};
    } catch (const RefusedError& e) {
      return {3, e.what()};
    } catch (const PeerError& e) {
      return {4, e.what(), true};
    } catch (const StoppedError& e) {
      return {75, e.what()};
    } catch (const std::exception& e) {
      return {1, e.what()};
    } catch (...) {
      return {1, "an exception of unknown type"};
    }
  } catch (...) {  // no memory for the message
    return {};
  }
}

}  // namespace stagecraft
