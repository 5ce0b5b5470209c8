#include "models/tensors/libtorch_error.h"

#include "base/error.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

#include <new>

namespace stagecraft {
namespace {

/// Within a handler.
template <class Outer>
[[noreturn]] void nest(const std::string& where, const std::string& what) {
  std::throw_with_nested(Outer(where.empty() ? what : where + ": " + what));
}

}  // namespace

std::string one_line(const c10::Error& error) {
  std::string line;
  for (const char c : std::string(error.what_without_backtrace())) {
    if (c != '\n') {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

std::exception_ptr without_stack(const std::exception_ptr& error, const std::string& where) {
  try {
    try {
      std::rethrow_exception(error);
    } catch (const c10::OutOfMemoryError& e) {
      nest<RefusedError>(where, one_line(e));
    } catch (const c10::Error& e) {
      nest<InternalError>(where, one_line(e));
    } catch (const std::bad_alloc&) {
      nest<RefusedError>(where, "out of memory");
    }
  } catch (...) {
    return std::current_exception();
  }
}

std::exception_ptr with_place(const std::exception_ptr& error, const std::string& where, PlaceInput input) {
  return place_error(without_stack(error, ""), where, input);
}

std::string whole_error(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::nested_exception& outer) {
    if (outer.nested_ptr() == nullptr) return "";
    std::string deeper = whole_error(outer.nested_ptr());
    if (!deeper.empty()) return deeper;
    try {
      outer.rethrow_nested();
    } catch (const std::exception& inner) {
      return inner.what();
    } catch (...) {
      return "";
    }
  } catch (...) {
    return "";
  }
}

}  // namespace stagecraft
