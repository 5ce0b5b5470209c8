#pragma once

// Names the place where an exception came from. Code of others (layers, data sets, losses, schedules that a
// program registers) may throw anything; people must hear whose it was.

#include <cstdint>
#include <exception>
#include <string>

namespace stagecraft {

/// What was thrown, in one text: what() of an exception, the value of a thrown string or int, the name of any
/// other type.
[[nodiscard]] std::string thrown_text(const std::exception_ptr& error);

/// Whether an InputError gets its place too. Not where it has one of its own, in a config or a data file.
enum class PlaceInput : std::uint8_t { no, yes };

/// `error` with "WHERE: " before what it says and the original nested. Its kind stays: RefusedError for that
/// and for std::bad_alloc, InputError; anything else becomes an InternalError, whatever its type. PeerError,
/// StoppedError and the failure to start a thread are not about WHERE and come back as they are, as does any
/// error where `where` is empty.
[[nodiscard]] std::exception_ptr place_error(const std::exception_ptr& error, const std::string& where,
                                             PlaceInput input = PlaceInput::no);

/// What `work` returns; what it throws goes through place_error. `where` is called only then.
template <class Where, class Work>
decltype(auto) placed(const Where& where, const Work& work, PlaceInput input = PlaceInput::no) {
  try {
    return work();
  } catch (...) {
    std::rethrow_exception(place_error(std::current_exception(), where(), input));
  }
}

}  // namespace stagecraft
