#include "test/support/fake_wire.h"

#include "base/error.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace stagecraft::test {

struct FakeGroup::Half {
  Key key;
  char* into = nullptr;
  const char* from = nullptr;
  std::size_t size = 0;
  bool over = false, interrupted = false, abandoned = false;
};

class FakeGroup::FakeWire final : public transport::Wire {
 public:
  FakeWire(FakeGroup& group, Rank rank) : group_(group), rank_(rank) {}
  [[nodiscard]] Rank rank() const override { return rank_; }
  [[nodiscard]] int world() const override { return group_.world_; }

  std::unique_ptr<Move> send(Rank to, int tag, const void* bytes, std::size_t size) override {
    const auto half = std::make_shared<Half>();
    half->key = {rank_.value, to.value, tag};
    half->from = static_cast<const char*>(bytes);
    half->size = size;
    return begin(half, group_.sends_, group_.receives_);
  }
  std::unique_ptr<Move> receive(Rank from, int tag, void* bytes, std::size_t size) override {
    const auto half = std::make_shared<Half>();
    half->key = {from.value, rank_.value, tag};
    half->into = static_cast<char*>(bytes);
    half->size = size;
    return begin(half, group_.receives_, group_.sends_);
  }

 private:
  using Waiting = std::map<Key, std::deque<std::shared_ptr<Half>>>;

  class FakeMove final : public Move {
   public:
    FakeMove(FakeGroup& group, std::shared_ptr<Half> half) : group_(group), half_(std::move(half)) {}
    ~FakeMove() override {
      const std::lock_guard lock(group_.mutex_);
      half_->abandoned = true;
    }
    bool wait() override {
      std::unique_lock lock(group_.mutex_);
      const auto cut = [&] {
        return group_.cut_[static_cast<std::size_t>(std::get<0>(half_->key))] ||
               group_.cut_[static_cast<std::size_t>(std::get<1>(half_->key))];
      };
      group_.woken_.wait(lock, [&] { return half_->over || half_->interrupted || cut(); });
      if (half_->interrupted) {
        half_->interrupted = false;
        return false;
      }
      if (!half_->over) throw PeerError("connection closed by peer");
      return true;
    }
    void interrupt() override {
      const std::lock_guard lock(group_.mutex_);
      half_->interrupted = true;
      group_.woken_.notify_all();
    }

   private:
    FakeGroup& group_;
    std::shared_ptr<Half> half_;
  };

  std::unique_ptr<Move> begin(const std::shared_ptr<Half>& half, Waiting& own, Waiting& others) {
    const std::lock_guard lock(group_.mutex_);
    auto& met = others[half->key];
    if (met.empty()) {
      own[half->key].push_back(half);
    } else {
      const std::shared_ptr<Half> other = met.front();
      met.pop_front();
      const Half& from = half->from != nullptr ? *half : *other;
      const Half& into = half->from != nullptr ? *other : *half;
      if (from.size > into.size) std::abort();  // as Gloo does
      if (!other->abandoned) std::memcpy(into.into, from.from, from.size);
      group_.longest_ = std::max(group_.longest_, from.size);
      half->over = other->over = true;
      group_.woken_.notify_all();
    }
    return std::make_unique<FakeMove>(group_, half);
  }

  FakeGroup& group_;
  Rank rank_;
};

std::unique_ptr<transport::Wire> FakeGroup::wire(Rank rank) {
  return std::make_unique<FakeWire>(*this, rank);
}

void FakeGroup::cut_off(Rank rank) {
  const std::lock_guard lock(mutex_);
  cut_[rank.index()] = true;
  woken_.notify_all();
}

std::size_t FakeGroup::longest() const {
  const std::lock_guard lock(mutex_);
  return longest_;
}

}  // namespace stagecraft::test
