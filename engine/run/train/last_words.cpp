#include "engine/run/train/last_words.h"

#include "base/error.h"
#include "base/failure.h"
#include "engine/core/overflow.h"
#include "engine/run/save/finite_state.h"

#include <fmt/format.h>
#include <spdlog/logger.h>

#include <chrono>
#include <thread>

namespace stagecraft {
namespace {

template <class Error>
[[nodiscard]] bool is(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error&) {
    return true;
  } catch (...) {
    return false;
  }
}

}  // namespace

std::exception_ptr LastWords::of(const std::exception_ptr& error) {
  const bool heard = is<MeetAgainError>(error);
  const bool own = !is<PeerError>(error) && trainer_ != nullptr && trainer_->in_segment();
  if (!heard && !own) {
    meeting_.fail("nothing is saved");
    return with_words(error, "");
  }
  const Failure failure = failure_of(error);
  if (own) {
    transport_.call_off(fmt::format("{} failed during {}: {}", setup_.rank_name(transport_.rank()),
                                    doing_.what, failure.message));
  }
  const std::string kept = save(is<NotFiniteError>(error));
  log_.info("{}", kept);
  const std::exception_ptr whole = with_words(error, kept);
  if (own) doing_.failed(whole);
  leave();
  return whole;
}

std::string LastWords::save(bool not_finite) {
  try {
    if (trainer_ == nullptr) throw InputError("this rank had not begun");
    return trainer_->save_last_state(meeting_, not_finite);
  } catch (...) {
    const std::string why = failure_of(std::current_exception()).message;
    meeting_.fail(why);
    return fmt::format("The state since the last checkpoint was not saved: {}", why);
  }
}

/// The rank that failed speaks first, so the others wait until it has.
void LastWords::leave() {
  try {
    meeting_.barrier();
  } catch (const PeerError&) {  // it has ended, or cannot come
    constexpr auto kMoment = std::chrono::milliseconds(200);
    std::this_thread::sleep_for(kMoment);
  }
}

/// The same error, whose message goes on with `words`, or with what helps where numbers were not finite.
std::exception_ptr LastWords::with_words(const std::exception_ptr& error, const std::string& words) const {
  try {
    std::rethrow_exception(error);
  } catch (const NotFiniteError& e) {
    const std::string checkpoint = trainer_ == nullptr ? "" : trainer_->last_checkpoint();
    return std::make_exception_ptr(
        InputError(fmt::format("{}. {}", e.what(), how_to_go_on(e, setup_, checkpoint))));
  } catch (...) {
    if (words.empty()) return error;
  }
  const Failure failure = failure_of(error);
  const std::string text = fmt::format("{}. {}", failure.message, words);
  if (failure.code == exit_code::kInput) return std::make_exception_ptr(InputError(text));
  if (failure.code == exit_code::kRefused) return std::make_exception_ptr(RefusedError(text));
  if (failure.code == exit_code::kStopped) return std::make_exception_ptr(StoppedError(text));
  return failure.code == exit_code::kDefect ? std::make_exception_ptr(InternalError(text)) : error;
}

}  // namespace stagecraft
