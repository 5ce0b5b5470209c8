#include "cli/memory_end.h"

#include "base/failure.h"

#include <atomic>
#include <cstdlib>
#include <exception>
#include <new>
#include <string_view>
#include <unistd.h>

namespace stagecraft::cli {
namespace {

std::terminate_handler before = nullptr;
std::atomic<int> outcome{-1};  // -1: the command is still at work

/// Takes no memory, and runs nothing else of the program: other threads may be in the middle of anything.
[[noreturn]] void end() {
  if (const std::exception_ptr error = std::current_exception()) {
    try {
      std::rethrow_exception(error);
    } catch (const std::bad_alloc&) {
      if (outcome >= 0) ::_exit(outcome);
      constexpr std::string_view kLine =
          "stagecraft: out of memory, at a place that cannot report for what; make the sizes smaller, or use "
          "a "
          "machine with more\n";
      (void)!::write(STDERR_FILENO, kLine.data(), kLine.size());
      ::_exit(exit_code::kRefused);
    } catch (...) {  // said as always
    }
  }
  before();
  std::abort();
}

}  // namespace

void end_in_order_without_memory() noexcept { before = std::set_terminate(end); }

int done_with(int code) noexcept { return outcome = code; }

}  // namespace stagecraft::cli
