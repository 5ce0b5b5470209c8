#include "engine/transport/c10d/mailbox.h"

#include "base/error.h"
#include "engine/transport/wait_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace stagecraft::transport {
namespace {

/// Fits into one frame with its message's head.
constexpr std::size_t kShort = Lines::kFrame - 128;

bool is_short(const C10dHalf& half) { return half.tensor.nbytes() <= kShort; }

std::string wrong_length(const C10dHalf& half, std::int64_t other) {
  return fmt::format("{} has {} bytes, its {} {}", name_transfer(half.send, half.tag, half.peer),
                     half.tensor.nbytes(), half.send ? "receive" : "send", other);
}

void append(std::string& list, const std::string& text) {
  const auto size = static_cast<std::uint64_t>(text.size());
  list.append(reinterpret_cast<const char*>(&size), sizeof size);
  list += text;
}

std::vector<std::string> texts_in(const std::string& list) {
  std::vector<std::string> texts;
  for (std::size_t at = 0; at < list.size();) {
    std::uint64_t size = 0;
    std::memcpy(&size, list.data() + at, sizeof size);
    texts.push_back(list.substr(at + sizeof size, size));
    at += sizeof size + size;
  }
  return texts;
}

/// What a result's text begins with.
constexpr char kParts = 'p', kDiffer = 'd';

}  // namespace

Mailbox::Mailbox(std::int32_t number, Rank rank, int world, Lines& lines)
    : number_(number), rank_(rank), lines_(lines), world_(world) {}

void Mailbox::meet(int ranks) {
  const std::lock_guard lock(mutex_);
  world_ = ranks;
}

Message Mailbox::message(Message::Kind kind) const {
  Message message;
  message.kind = kind;
  message.transport = number_;
  return message;
}

void Mailbox::post_to_all(const Message& message) {
  for (int r = 0; r < world_; ++r) {
    if (r != rank_.value) lines_.post(Rank{r}, message);
  }
}

void Mailbox::begin(const Half& half) {
  if (half->send) {
    std::optional<Opening> opening;
    {
      const std::lock_guard lock(mutex_);
      opening = matching_.begin({half->peer, half->texts, half->tag}, half);
    }
    if (opening) answer(half, *opening);
    return;
  }
  const std::uint32_t place = lines_.next_place();
  const auto bytes = static_cast<std::int64_t>(half->tensor.nbytes());
  if (!is_short(*half)) {
    half->coming = lines_.open(half->peer, place, half->tensor.mutable_data_ptr(), half->tensor.nbytes());
  }
  {
    const std::lock_guard lock(mutex_);
    receives_.emplace(place, half);
  }
  Message ready = message(Message::Kind::ready);
  ready.texts = half->texts;
  ready.number = place;
  ready.bytes = bytes;
  ready.tag = half->tag;
  lines_.post(half->peer, ready);
}

void Mailbox::answer(const Half& half, const Opening& opening) {
  const std::size_t size = half->tensor.nbytes();
  if (opening.bytes != static_cast<std::int64_t>(size)) {
    half->refusal = wrong_length(*half, opening.bytes);
    Message refused = message(Message::Kind::refused);
    refused.number = opening.place;
    refused.bytes = static_cast<std::int64_t>(size);
    lines_.post(half->peer, refused);
    return finish(*half);
  }
  const void* const bytes = half->tensor.const_data_ptr();
  if (is_short(*half)) {
    Message data = message(Message::Kind::data);
    data.number = opening.place;
    if (size > 0) data.text.assign(static_cast<const char*>(bytes), size);
    lines_.post(half->peer, data);
    return finish(*half);
  }
  lines_.send(half->peer, opening.place, bytes, size, half, [this, half] { finish(*half); });
  Message sent = message(Message::Kind::sent);
  sent.number = opening.place;
  lines_.post(half->peer, sent);
}

void Mailbox::finish(C10dHalf& half) {
  // The rank may give the memory back as soon as it is told: nothing here may keep it.
  half.tensor = at::Tensor();
  half.over.store(true, std::memory_order_release);
  happen();
}

void Mailbox::happen() {
  {
    const std::lock_guard lock(mutex_);  // the rank is either asleep or has not looked yet
    events_.fetch_add(1, std::memory_order_release);
  }
  woken_.notify_all();
}

void Mailbox::sleep(std::uint64_t events, std::chrono::milliseconds longest) {
  std::unique_lock lock(mutex_);
  (void)woken_.wait_for(lock, longest, [&] { return events_ != events; });
}

Mailbox::Half Mailbox::take_receive(std::uint32_t place) {
  const std::lock_guard lock(mutex_);
  const auto found = receives_.find(place);
  STAGECRAFT_CHECK(found != receives_.end(),
                   fmt::format("a rank answers to a place {} that is not open", place));
  Half half = std::move(found->second);
  receives_.erase(found);
  return half;
}

void Mailbox::take(Rank from, Message&& message) {
  using Kind = Message::Kind;
  switch (message.kind) {
    case Kind::ready: {
      const Opening opening{message.number, message.bytes};
      std::optional<Half> half;
      {
        const std::lock_guard lock(mutex_);
        half = matching_.open({from, message.texts, message.tag}, opening);
      }
      if (half) answer(*half, opening);
      return;
    }
    case Kind::data: {
      const Half half = take_receive(message.number);
      if (!message.text.empty()) {
        std::memcpy(half->tensor.mutable_data_ptr(), message.text.data(), message.text.size());
      }
      return finish(*half);
    }
    case Kind::sent: {
      const Half half = take_receive(message.number);
      if (half->coming && lines_.await(from, *half->coming)) finish(*half);
      return;
    }
    case Kind::refused: {
      const Half half = take_receive(message.number);
      half->refusal = wrong_length(*half, message.bytes);
      return finish(*half);
    }
    case Kind::brought:
      return collect(from, message.number, message.text);
    case Kind::result: {
      {
        const std::lock_guard lock(mutex_);
        results_.emplace(message.number, std::move(message.text));
      }
      return happen();
    }
    case Kind::agrees:
      return count(message.number, static_cast<int>(message.bytes));
    case Kind::agreed: {
      {
        const std::lock_guard lock(mutex_);
        agreed_.emplace(message.number, static_cast<int>(message.bytes));
      }
      return happen();
    }
    case Kind::failed:
    case Kind::left_off: {
      {
        const std::lock_guard lock(mutex_);
        // What comes later follows from the first.
        if (!failure_) failure_ = Failure{from, std::move(message.text), message.kind == Kind::left_off};
        failed_ = true;
      }
      return happen();
    }
    case Kind::left:
      return;
  }
}

void Mailbox::bring(std::uint32_t number, const std::string& what, const std::string& mine) {
  std::string bytes;
  append(bytes, what);
  append(bytes, mine);
  if (rank_ == Rank{0}) return collect(rank_, number, bytes);
  Message brought = message(Message::Kind::brought);
  brought.number = number;
  brought.text = std::move(bytes);
  lines_.post(Rank{0}, brought);
}

void Mailbox::collect(Rank from, std::uint32_t number, const std::string& bytes) {
  std::vector<std::string> texts = texts_in(bytes);
  Message result = message(Message::Kind::result);
  result.number = number;
  {
    const std::lock_guard lock(mutex_);
    Round& round = rounds_[number];
    round.whats.resize(static_cast<std::size_t>(world_));
    round.brought.resize(static_cast<std::size_t>(world_));
    round.whats[from.index()] = std::move(texts.at(0));
    round.brought[from.index()] = std::move(texts.at(1));
    if (++round.arrived < world_) return;
    const auto& whats = round.whats;
    const auto other = std::find_if(whats.begin(), whats.end(), [&](const auto& w) { return w != whats[0]; });
    if (other == whats.end()) {
      result.text = kParts;
      for (const std::string& part : round.brought) append(result.text, part);
    } else {
      result.text = fmt::format("{}rank {} came to a {} where rank 0 is in a {}", kDiffer,
                                other - whats.begin(), *other, whats[0]);
    }
    results_.emplace(number, result.text);
    rounds_.erase(number);
  }
  post_to_all(result);
  happen();
}

std::optional<std::vector<std::string>> Mailbox::take_result(std::uint32_t number) {
  std::string text;
  {
    const std::lock_guard lock(mutex_);
    const auto found = results_.find(number);
    if (found == results_.end()) return std::nullopt;
    text = std::move(found->second);
    results_.erase(found);
  }
  STAGECRAFT_CHECK(text.at(0) == kParts, text.substr(1));
  return texts_in(text.substr(1));
}

void Mailbox::agree(std::uint32_t number, int mine) {
  if (rank_ == Rank{0}) return count(number, mine);
  Message agrees = message(Message::Kind::agrees);
  agrees.number = number;
  agrees.bytes = mine;
  lines_.post(Rank{0}, agrees);
}

void Mailbox::count(std::uint32_t number, int brought) {
  Message agreed = message(Message::Kind::agreed);
  agreed.number = number;
  {
    const std::lock_guard lock(mutex_);
    Question& question = questions_[number];
    question.most = question.arrived == 0 ? brought : std::max(question.most, brought);
    if (++question.arrived < world_) return;
    agreed.bytes = question.most;
    agreed_.emplace(number, question.most);
    questions_.erase(number);
  }
  post_to_all(agreed);
  happen();
}

std::optional<int> Mailbox::take_agreed(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  const auto found = agreed_.find(number);
  if (found == agreed_.end()) return std::nullopt;
  const int most = found->second;
  agreed_.erase(found);
  return most;
}

void Mailbox::tell_failure(const std::string& reason, bool meets) {
  Message failed = message(meets ? Message::Kind::left_off : Message::Kind::failed);
  failed.text = reason;
  post_to_all(failed);
}

std::optional<Mailbox::Failure> Mailbox::failure() const {
  if (!failed_.load(std::memory_order_relaxed)) return std::nullopt;
  const std::lock_guard lock(mutex_);
  return failure_;
}

}  // namespace stagecraft::transport
