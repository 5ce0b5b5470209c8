#include "base/failure.h"

#include "base/error.h"

#include <filesystem>
#include <new>
#include <system_error>

namespace stagecraft {

Failure failure_of(const std::exception_ptr& error) noexcept {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const InputError& e) {
      return {exit_code::kInput, e.what()};
    } catch (const RefusedError& e) {
      return {exit_code::kRefused, e.what()};
    } catch (const TakenOverError& e) {
      return {exit_code::kPeer, e.what()};
    } catch (const PeerError& e) {
      return {exit_code::kPeer, e.what(), true};
    } catch (const StoppedError& e) {
      return {exit_code::kStopped, e.what()};
    } catch (const std::bad_alloc&) {
      return {exit_code::kRefused, "out of memory; make the sizes smaller, or use a machine with more"};
    } catch (
        const std::filesystem::filesystem_error& e) {  // a path that leads nowhere, or may not be looked at
      return {exit_code::kInput, e.path1().string() + ": " + e.code().message()};
    } catch (const std::system_error& e) {
      if (e.code() != std::errc::resource_unavailable_try_again) return {exit_code::kDefect, e.what()};
      return {
          exit_code::kInput,
          "no thread can be started: a limit on processes or memory is too low (ulimit -u, -v or -d, or a "
          "container's pids.max)"};
    } catch (const std::exception& e) {
      return {exit_code::kDefect, e.what()};
    } catch (...) {
      return {exit_code::kDefect, "an exception of unknown type; this is a defect in Stagecraft"};
    }
  } catch (...) {  // no memory for the message
    return {};
  }
}

}  // namespace stagecraft
