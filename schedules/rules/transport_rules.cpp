#include "schedules/rules/transport_rules.h"

#include "base/error.h"
#include "base/nearest.h"
#include "base/table.h"
#include "base/text.h"
#include "schedules/costs/traffic.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace stagecraft {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& why, const std::string& hint = "") {
  throw InputError(fmt::format(
      "transport \"{}\": {}; expected rendezvous, eager[:LIMIT[:BUFFER]] (bytes) or nccl, and behind "
      "commas at most one of tagged and fifo, at most one of boundary, payload and pair, of nccl "
      "unannounced{}",
      name, why, hint));
}

/// "eager", "eager:LIMIT", "eager:LIMIT:BUFFER"; nothing for any other word.
std::optional<TransportRules> eager_rules(std::string_view word) {
  std::optional<Bytes> numbers[2];
  for (std::optional<Bytes>& number : numbers) {
    const std::size_t colon = word.rfind(':');
    if (colon == std::string_view::npos) break;
    std::int64_t value = 0;
    const char* const last = word.data() + word.size();
    const auto [end, error] = std::from_chars(word.data() + colon + 1, last, value);
    if (error != std::errc{} || end != last || value < 0) return std::nullopt;
    number = Bytes{value};
    word = word.substr(0, colon);
  }
  if (word != "eager") return std::nullopt;
  return numbers[1] ? TransportRules::eager(numbers[1], numbers[0]) : TransportRules::eager(numbers[0]);
}

bool stands_behind(std::string_view word) {
  return enum_named<TransportRules::Matching>(word) || enum_named<TransportRules::Channels>(word) ||
         word == "unannounced";
}

/// What comes first of a name.
std::optional<TransportRules> sends_rules(std::string_view word) {
  if (word == "rendezvous") return TransportRules{};
  if (word == "nccl") return TransportRules::nccl();
  return eager_rules(word);
}

TransportRules first_rules(std::string_view word, const std::string& name) {
  if (const auto rules = sends_rules(word)) return *rules;
  if (stands_behind(word)) refuse(name, fmt::format("\"{}\" stands behind a comma", word));
  refuse(name, word.empty() ? "nothing stands first" : fmt::format("\"{}\" is unknown", word),
         did_you_mean(word, {"rendezvous", "eager", "nccl"}));
}

/// Of words that answer the same question, one is given.
void give(std::string_view word, std::string_view& given, const std::string& name) {
  if (given == word) refuse(name, fmt::format("\"{}\" is there twice", word));
  if (!given.empty()) refuse(name, fmt::format("\"{}\" or \"{}\", not both", given, word));
  given = word;
}

}  // namespace

ChannelKey channel_key(const TransportRules& rules, const Tag& tag) {
  switch (rules.channels) {
    case TransportRules::Channels::boundary:
      return {tag.payload, tag.from, tag.to};
    case TransportRules::Channels::payload:
      return {tag.payload, {}, {}};
    case TransportRules::Channels::pair:
      break;
  }
  return {};
}

std::optional<Bytes> message_bytes(const CostTable* costs, const Tag& tag) {
  if (costs == nullptr) return std::nullopt;
  if (tag.is_loss()) return costs->loss;
  if (!tag.to.valid() || tag.to.index() >= costs->stages.size()) return std::nullopt;
  return payload_bytes(*costs, tag.payload, tag.from, tag.to);
}

void EagerBuffers::send(Rank to, const Tag& tag, std::int32_t name, std::vector<std::int32_t>& awaited) {
  const auto size = message_bytes(costs_, tag);
  for (const auto& most : {rules_.eager_limit, rules_.eager_buffer}) {
    if (!most || (size && *size <= *most)) continue;
    awaited.push_back(name);
    return;
  }
  if (!rules_.eager_buffer) return;
  Buffer& buffer = buffers_[{to, channel_key(rules_, tag)}];
  buffer.messages.emplace_back(name, size->value);
  for (buffer.bytes += size->value; buffer.bytes > rules_.eager_buffer->value; buffer.messages.pop_front()) {
    awaited.push_back(buffer.messages.front().first);
    buffer.bytes -= buffer.messages.front().second;
  }
}

TransportRules transport_rules(const std::string& name) {
  std::string_view rest = name;
  const std::string_view first = take_until(rest, ",");
  TransportRules rules = first_rules(first, name);
  const bool launched = rules.sends == TransportRules::Sends::launched;
  std::string_view sends = first, matching, channels, announced;
  for (bool more = name.size() > first.size(); more;) {
    const std::size_t length = rest.size();
    const std::string_view word = take_until(rest, ",");
    more = word.size() < length;  // a comma stands behind it
    if (const auto its_matching = enum_named<TransportRules::Matching>(word)) {
      if (launched && *its_matching == TransportRules::Matching::tagged)
        refuse(name, "what nccl launches has no tags: leave \"tagged\" out");
      give(word, matching, name);
      rules.matching = *its_matching;
    } else if (const auto its_channels = enum_named<TransportRules::Channels>(word)) {
      give(word, channels, name);
      rules.channels = *its_channels;
    } else if (word == "unannounced") {
      if (!launched) refuse(name, "only nccl announces what it launches: leave \"unannounced\" out");
      give(word, announced, name);
      rules.announced = false;
    } else if (sends_rules(word)) {
      give(word, sends, name);
    } else {
      refuse(name, word.empty() ? "nothing stands behind a comma" : fmt::format("\"{}\" is unknown", word),
             did_you_mean(word, {"tagged", "fifo", "boundary", "payload", "pair", "unannounced"}));
    }
  }
  return rules;
}

std::string describe_rules(const TransportRules& rules) {
  std::string text;
  switch (rules.sends) {
    case TransportRules::Sends::rendezvous:
      text = "even if every send blocks until it is received";
      break;
    case TransportRules::Sends::eager:
      text = "if sends ";
      if (rules.eager_limit) text += fmt::format("of up to {} ", format_bytes(*rules.eager_limit));
      text += "are buffered";
      if (rules.eager_buffer) text += fmt::format(", {} per channel", format_bytes(*rules.eager_buffer));
      text += rules.needs_sizes() ? " and all others block" : "";
      break;
    case TransportRules::Sends::launched:
      text = fmt::format("with {}operations that run in launch order", rules.announced ? "announced " : "");
      break;
  }
  if (!rules.ordered()) return text;
  text += " and ends that meet without tags";
  switch (rules.channels) {
    case TransportRules::Channels::boundary:
      return text + ", on a channel per boundary";
    case TransportRules::Channels::payload:
      return text + ", on a channel per payload between two ranks";
    case TransportRules::Channels::pair:
      break;
  }
  return text + ", on one channel per pair of ranks";
}

}  // namespace stagecraft
