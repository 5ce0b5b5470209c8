#include "models/tensors/libtorch_error.h"

#include "base/error.h"
#include "base/failure.h"
#include "models/tensors/counting_allocator.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <new>
#include <string>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;

template <class Work>
std::exception_ptr thrown(const Work& work) {
  try {
    work();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

/// LibTorch 2.15 names the operator first, 2.11 does not.
std::string without_operator(std::string message) {
  const std::size_t at = message.find("mm: ");
  if (at != std::string::npos) message.erase(at, 4);
  return message;
}

void mismatch() { (void)at::mm(at::zeros({2, 3}), at::zeros({4, 5})); }

TEST_CASE("LibTorch's errors are one line, and their stack is kept for the log", "[libtorch_error]") {
  const std::exception_ptr raw = thrown(mismatch);
  CHECK_THAT(failure_of(raw).message, ContainsSubstring("\n"));  // what people would get otherwise
  const std::exception_ptr error = without_stack(raw, "layer \"head\"");
  const Failure failure = failure_of(error);
  CHECK(failure.code == exit_code::kDefect);
  CHECK(without_operator(failure.message) ==
        "layer \"head\": mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)");
  CHECK_THAT(whole_error(error), ContainsSubstring("frame #"));
}

TEST_CASE("places go before an error, the innermost last, whatever its kind", "[libtorch_error]") {
  const std::exception_ptr inner = thrown([] { named([] { return "layer"; }, mismatch); });
  const std::exception_ptr outer = with_place(inner, "rank 1");
  CHECK_THAT(without_operator(failure_of(outer).message), Catch::Matchers::StartsWith("rank 1: layer: mat1"));
  CHECK_THAT(whole_error(outer), ContainsSubstring("frame #"));
  const std::exception_ptr refused = with_place(std::make_exception_ptr(RefusedError("too large")), "rank 1");
  CHECK(failure_of(refused).code == exit_code::kRefused);
  CHECK(failure_of(refused).message == "rank 1: too large");
  // About the input or other ranks: not this rank's doing.
  CHECK(failure_of(with_place(std::make_exception_ptr(InputError("bad")), "rank 1")).message == "bad");
  CHECK(failure_of(with_place(std::make_exception_ptr(PeerError("gone")), "rank 1")).secondary);
  CHECK(failure_of(with_place(std::make_exception_ptr(StoppedError("stop")), "rank 1")).code ==
        exit_code::kStopped);
  CHECK(whole_error(std::make_exception_ptr(InputError("bad"))).empty());
}

TEST_CASE("memory that is not there is a refusal that says how much was asked for", "[libtorch_error]") {
  install_counting_allocator();
  const std::exception_ptr error = thrown(
      [] { named([] { return "layer \"head\""; }, [] { (void)at::empty({std::int64_t{1} << 50U}); }); });
  const Failure failure = failure_of(error);
  CHECK(failure.code == exit_code::kRefused);
  CHECK_THAT(failure.message,
             ContainsSubstring("layer \"head\": out of memory: 4096.0 TiB (4503599627370496 bytes) are asked "
                               "for one tensor; ") &&
                 ContainsSubstring("are free of"));
  CHECK(failure.message.find('\n') == std::string::npos);
  CHECK(failure_of(without_stack(std::make_exception_ptr(std::bad_alloc()), "loading")).message ==
        "loading: out of memory");
  CHECK(failure_of(std::make_exception_ptr(std::bad_alloc())).code == exit_code::kRefused);
}

}  // namespace
}  // namespace stagecraft
