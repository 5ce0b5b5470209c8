#pragma once

// LibTorch's errors as people hear of them. A c10::Error's what() ends in LibTorch's own stack, dozens of
// lines; people get one line, and the rank's log the rest.

#include "base/place_error.h"

#include <c10/util/Exception.h>

#include <exception>
#include <string>

namespace stagecraft {

/// What LibTorch says, without its stack, in one line.
[[nodiscard]] std::string one_line(const c10::Error& error);

/// `error` as people hear of it, behind "WHERE: " (left out where empty), with the original nested: a
/// c10::Error becomes an InternalError of one line; where memory was what it lacked, and for std::bad_alloc,
/// a RefusedError. Any other error is returned as it is.
[[nodiscard]] std::exception_ptr without_stack(const std::exception_ptr& error, const std::string& where);
/// The same, and "WHERE: " before what any other error says, as place_error does it.
[[nodiscard]] std::exception_ptr with_place(const std::exception_ptr& error, const std::string& where,
                                            PlaceInput input = PlaceInput::no);

/// All that the innermost error nested in `error` said, LibTorch's stack included: for a log. "" where
/// nothing is nested.
[[nodiscard]] std::string whole_error(const std::exception_ptr& error);

/// What `work` returns, which may be anybody's code; what it throws goes through with_place. `where` is called
/// only then, so that it may take its time.
template <class Where, class Work>
decltype(auto) named(const Where& where, const Work& work, PlaceInput input = PlaceInput::yes) {
  try {
    return work();
  } catch (...) {
    std::rethrow_exception(with_place(std::current_exception(), where(), input));
  }
}

}  // namespace stagecraft
