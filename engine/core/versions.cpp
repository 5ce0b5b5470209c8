#include "engine/core/versions.h"

#include "base/error.h"

#include <ATen/ops/empty_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {

namespace {

void assign(const Tensors& to, const Tensors& from) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

}  // namespace

Versions::Versions(StageParameters current, StageParameters copies) {
  if (!copies.empty()) full_ = std::exchange(current, std::move(copies));
  ring_.push_back({Version{0}, std::move(current)});
}

void Versions::begin(const VersionReads& reads, bool keeps) {
  const std::size_t current = find(newest_);
  std::swap(ring_.front(), ring_[current]);
  // Nobody reads an older version any more: what reads one stands in the segment of the step that made it.
  if (!reads.steps && !keeps) ring_.erase(ring_.begin() + 1, ring_.end());
  for (Entry& entry : ring_) entry.version = Version{};
  newest_ = Version{0};
  ring_.front().version = newest_;
  reads_end_ = reads.end;
}

bool Versions::read_after(Version version, std::size_t at) const {
  return version.index() < reads_end_.size() && reads_end_[version.index()] > at + 1;
}

std::size_t Versions::find(Version version) const {
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    if (ring_[i].version == version) return i;
  }
  STAGECRAFT_CHECK(false, fmt::format("version {} of the weights is not there; the newest is {}",
                                      version.value, newest_.value));
  return 0;
}

const StageParameters& Versions::read(Version version) const { return ring_[find(version)].parameters; }

const StageParameters& Versions::advance(Version from, std::size_t at) {
  STAGECRAFT_CHECK(from == newest_,
                   fmt::format("a step from version {} where the newest is {}", from.value, newest_.value));
  newest_ = Version{from.value + 1};
  const std::size_t source = find(from);
  if (!read_after(from, at)) {
    ring_[source].version = newest_;
    return newest();
  }
  Entry& copy = ring_[free_entry(at)];
  copy.version = newest_;
  if (mixed()) return full_;  // published when they are updated
  const StageParameters& values = read(from);
  for (std::size_t layer = 0; layer < values.size(); ++layer) assign(copy.parameters[layer], values[layer]);
  return copy.parameters;
}

void Versions::publish(std::size_t layer) {
  if (mixed()) assign(read(newest_)[layer], full_[layer]);
}

void Versions::publish() {
  for (std::size_t layer = 0; layer < full_.size(); ++layer) publish(layer);
}

bool Versions::publish(const StageParameters& others) {
  for (std::size_t layer = 0; layer < full_.size(); ++layer) assign(read(newest_)[layer], others[layer]);
  return mixed();
}

std::size_t Versions::free_entry(std::size_t at) {
  for (std::size_t i = 0; i < ring_.size(); ++i) {
    if (!ring_[i].version.valid() || !read_after(ring_[i].version, at)) return i;
  }
  Entry fresh;
  for (const Tensors& layer : ring_.front().parameters) {
    Tensors& tensors = fresh.parameters.emplace_back();
    for (const at::Tensor& tensor : layer) tensors.push_back(at::empty_like(tensor));
  }
  ring_.push_back(std::move(fresh));
  return ring_.size() - 1;
}

}  // namespace stagecraft
