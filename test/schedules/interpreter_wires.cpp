#include "test/schedules/interpreter_wires.h"

#include <utility>

namespace stagecraft::test {

Wires::Channel Wires::channel_of(int from, int to, const Tag& tag) const {
  const auto payload = static_cast<int>(tag.payload);
  switch (rules_.channels) {
    case TransportRules::Channels::boundary:
      return {from, to, payload, tag.from.value, tag.to.value};
    case TransportRules::Channels::payload:
      return {from, to, payload, -1, -1};
    case TransportRules::Channels::pair:
      break;
  }
  if (launches() && from > to) std::swap(from, to);
  return {from, to, -1, -1, -1};
}

std::optional<std::int64_t> Wires::bytes_of(const Tag& tag) const {
  if (costs_ == nullptr) return std::nullopt;
  if (tag.payload == Payload::loss) return costs_->loss.value;
  const StageCosts& to = costs_->stages.at(tag.to.index());
  return (tag.payload == Payload::activation ? to.input : to.output).value;
}

void Wires::post(int rank, Slot slot, const Tag& tag) {
  const auto [from, to] = layout_.ends(tag);
  require(to == rank && from != rank, "a receive on the wrong rank");
  require(posted_.try_emplace(tag, Posted{rank, slot}).second, "a second receive of the same tag");
  ChannelState& channel = channels_[channel_of(from, to, tag)];
  if (launches()) {
    const bool second = rules_.channels != TransportRules::Channels::pair || rank > from;
    channel.ends[second ? 1 : 0].push_back({false, tag, 0, {rank, slot}});
    return;
  }
  const std::size_t number = channel.posted.size();
  channel.posted.push_back({rank, slot});
  for (Buffered& message : channel.buffer) {
    if (message.taken || (tags() ? message.tag != tag : message.number != number)) continue;
    arriving_.push_back({{rank, slot}, message.tag, message.content});
    message.taken = true;
  }
  while (!channel.buffer.empty() && channel.buffer.front().taken) channel.buffer.pop_front();
}

bool Wires::start_send(int rank, const Tag& tag, Symbol content) {
  const auto [from, to] = layout_.ends(tag);
  require(from == rank && to != rank, "a send on the wrong rank");
  if (tags() && sent_.contains(tag)) return false;
  ChannelState& channel = channels_[channel_of(from, to, tag)];
  if (launches()) {
    const bool second = rules_.channels == TransportRules::Channels::pair && rank > to;
    channel.ends[second ? 1 : 0].push_back({true, tag, content, {}});
    return true;
  }
  std::optional<Posted> where;
  if (!tags() && channel.posted.size() > channel.sent) where = channel.posted[channel.sent];
  if (tags() && posted_.contains(tag)) where = posted_.at(tag);
  if (eager(tag)) {
    if (!buffer(channel, tag, content, where.has_value())) return false;
  } else if (!where) {
    return false;
  }
  if (where) arriving_.push_back({*where, tag, content});
  ++channel.sent;
  sent_.insert(tag);
  return true;
}

bool Wires::eager(const Tag& tag) const {
  const auto bytes = bytes_of(tag);
  for (const auto& most : {rules_.eager_limit, rules_.eager_buffer}) {
    if (most && (!bytes || *bytes > most->value)) return false;
  }
  return rules_.sends == TransportRules::Sends::eager;
}

bool Wires::buffer(ChannelState& channel, const Tag& tag, Symbol content, bool taken) {
  const std::int64_t bytes = bytes_of(tag).value_or(0);
  std::int64_t held = bytes;
  for (const Buffered& message : channel.buffer) held += message.bytes;
  if (rules_.eager_buffer && held > rules_.eager_buffer->value) return false;
  channel.buffer.push_back({tag, channel.sent, content, bytes, taken});
  while (!channel.buffer.empty() && channel.buffer.front().taken) channel.buffer.pop_front();
  return true;
}

void Wires::complete_launched() {
  for (auto& [name, channel] : channels_) {
    auto& [first, second] = channel.ends;
    while (!first.empty() && !second.empty() && first.front().sends != second.front().sends) {
      const Launched& send = first.front().sends ? first.front() : second.front();
      const Launched& receive = first.front().sends ? second.front() : first.front();
      arriving_.push_back({receive.where, send.tag, send.content});
      over_.insert(send.tag);
      first.pop_front();
      second.pop_front();
    }
  }
}

bool Wires::send_over(const Tag& tag) {
  if (!launches()) return true;
  complete_launched();
  return over_.erase(tag) > 0;
}

Arrival Wires::take(std::size_t which) {
  const Arrival now = arriving_[which];
  arriving_.erase(arriving_.begin() + static_cast<std::ptrdiff_t>(which));
  return now;
}

std::optional<Arrival> Wires::any_arrival(std::mt19937& random) {
  if (arriving_.empty()) return std::nullopt;
  return take(random() % arriving_.size());
}

std::optional<Arrival> Wires::arrival_at(int rank, Slot slot) {
  if (launches()) complete_launched();
  for (std::size_t i = 0; i < arriving_.size(); ++i) {
    if (arriving_[i].where.rank == rank && arriving_[i].where.slot == slot) return take(i);
  }
  return std::nullopt;
}

void Wires::require_empty() const {
  for (const auto& [name, channel] : channels_) {
    require(channel.buffer.empty() && channel.ends[0].empty() && channel.ends[1].empty(),
            "nobody receives a message");
  }
}

}  // namespace stagecraft::test
