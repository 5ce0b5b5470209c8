#include "base/place_error.h"

#include "base/error.h"

#include <fmt/format.h>

#include <cstdlib>
#include <cxxabi.h>
#include <memory>
#include <new>
#include <system_error>

namespace stagecraft {
namespace {

/// Of the exception in flight.
std::string type_in_flight() {
  const std::type_info* const type = abi::__cxa_current_exception_type();
  if (type == nullptr) return "unknown type";
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, nullptr), std::free);
  return fmt::format("type {}", name != nullptr ? name.get() : type->name());
}

/// Within a handler.
template <class Outer>
[[noreturn]] void nest(const std::string& where, const std::string& what) {
  std::throw_with_nested(Outer(where + ": " + what));
}

}  // namespace

std::string thrown_text(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    const char* const what = e.what();
    if (what != nullptr && *what != '\0') return what;
    return fmt::format("an exception of {}, which says nothing", type_in_flight());
  } catch (const std::string& text) {
    return text;
  } catch (const char* text) {
    return text != nullptr ? text : "a null pointer was thrown";
  } catch (int number) {
    return fmt::format("the number {} was thrown", number);
  } catch (...) {
    return fmt::format("an exception of {}", type_in_flight());
  }
}

std::exception_ptr place_error(const std::exception_ptr& error, const std::string& where, PlaceInput input) {
  if (where.empty()) return error;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const InputError& e) {
      if (input == PlaceInput::no) throw;
      nest<InputError>(where, e.what());
    } catch (const PeerError&) {
      throw;
    } catch (const StoppedError&) {
      throw;
    } catch (const RefusedError& e) {
      nest<RefusedError>(where, e.what());
    } catch (const std::bad_alloc&) {
      nest<RefusedError>(where, "out of memory");
    } catch (const std::system_error& e) {
      if (e.code() == std::errc::resource_unavailable_try_again) throw;
      nest<InternalError>(where, e.what());
    } catch (...) {
      nest<InternalError>(where, thrown_text(error));
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace stagecraft
