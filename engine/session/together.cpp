#include "engine/session/together.h"

#include "base/error.h"
#include "base/failure.h"
#include "base/json.h"

#include <exception>
#include <string>

namespace stagecraft {
namespace {

[[noreturn]] void throw_like(const Failure& failure, bool taken_over) {
  if (taken_over) throw TakenOverError(failure.message);
  switch (failure.code) {
    case exit_code::kInput:
      throw InputError(failure.message);
    case exit_code::kRefused:
      throw RefusedError(failure.message);
    case exit_code::kPeer:
      throw PeerError(failure.message);
    default:
      throw InternalError(failure.message);
  }
}

}  // namespace

void together(Transport& transport, const std::function<void()>& work) {
  std::exception_ptr error;
  Json mine;
  const auto refuse = [&](bool taken_over) {
    error = std::current_exception();
    const Failure failure = failure_of(error);
    mine["code"] = failure.code;
    mine["message"] = failure.message;
    mine["taken_over"] = taken_over;
  };
  try {
    work();
  } catch (const TakenOverError&) {
    refuse(true);
  } catch (const PeerError&) {
    throw;
  } catch (...) {
    refuse(false);
  }
  const auto all = transport.all_gather_text(mine.dump());
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Json theirs = Json::parse(all[rank]);
    if (theirs.is_null()) continue;
    if (static_cast<int>(rank) == transport.rank().value) std::rethrow_exception(error);
    throw_like({.code = theirs.at("code").get<int>(), .message = theirs.at("message").get<std::string>()},
               theirs.at("taken_over").get<bool>());
  }
}

}  // namespace stagecraft
