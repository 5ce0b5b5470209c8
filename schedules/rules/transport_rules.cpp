#include "stagecraft/schedules/rules/transport_rules.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/table.h"
#include "stagecraft/base/text.h"
#include "stagecraft/schedules/costs/traffic.h"

#include <fmt/format.h>

#include <charconv>
#include <string_view>

namespace stagecraft {
namespace {

InputError unknown(std::string_view word, const std::string& name) {
  return InputError(fmt::format(
      "transport \"{}\": \"{}\" is none of rendezvous, eager[:LIMIT[:BUFFER]] (bytes), nccl; tagged, "
      "fifo; boundary, payload, pair; of nccl unannounced{}",
      name, word,
      did_you_mean(word, {"rendezvous", "eager", "nccl", "tagged", "fifo", "boundary", "payload", "pair",
                          "unannounced"})));
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
  TransportRules rules;
  std::string_view rest = name;
  for (bool first = true; first || !rest.empty(); first = false) {
    const std::string_view word = take_until(rest, ",");
    if (first && word == "nccl") {
      rules = TransportRules::nccl();
    } else if (const auto eager = eager_rules(word); first && eager) {
      rules = *eager;
    } else if (first && word == "rendezvous") {
      rules = {};
    } else if (const auto matching = enum_named<TransportRules::Matching>(word); !first && matching) {
      rules.matching = *matching;
    } else if (const auto channels = enum_named<TransportRules::Channels>(word); !first && channels) {
      rules.channels = *channels;
    } else if (!first && word == "unannounced") {
      if (rules.sends != TransportRules::Sends::launched)
        throw InputError(fmt::format("transport \"{}\": only nccl announces what it launches", name));
      rules.announced = false;
    } else {
      throw unknown(word, name);
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
