#include "schedules/generators/v_turns.h"

#include <vector>

namespace stagecraft {
namespace {

/// One rank's list, and how far its two stages are.
class RankTurns {
 public:
  RankTurns(const VirtualStages& shape, int position, int replica, int count, Order& order)
      : shape_(shape), position_(position), replica_(replica), count_(count), order_(order) {}

  void fill() {
    const int ranks = shape_.ranks;
    for (int i = 0; i < 2 * (ranks - position_) - 1; ++i) forward(kFirst);
    for (int i = 0; i < position_; ++i) {
      forward(kLast);
      forward(kFirst);
    }
    forward(kLast);
    // By turns: backward, forward. While only last stages have backwards, only they have forwards.
    const int alone = ranks - position_;
    for (int turn = 0; backwards_[kFirst] < count_; ++turn) {
      const bool both = turn >= alone;
      backward(both && (turn - alone) % 2 == 0 ? kFirst : kLast);
      const bool forwards_of_both = turn >= alone - 1;
      forward(forwards_of_both && (turn - alone + 1) % 2 == 0 ? kFirst : kLast);
    }
  }

 private:
  static constexpr std::size_t kFirst = 0, kLast = 1;

  void forward(std::size_t chunk) {
    const bool there = chunk == kFirst || forwards_[kLast] < forwards_[kFirst];
    if (there && forwards_[chunk] < count_) add(Op::forward, chunk, forwards_[chunk]++);
  }
  void backward(std::size_t chunk) {
    const bool there = chunk == kLast || backwards_[kFirst] < backwards_[kLast];
    if (!there || backwards_[chunk] == count_ || backwards_[chunk] == forwards_[chunk]) return;
    add(Op::backward_input, chunk, backwards_[chunk]);
    add(Op::backward_weight, chunk, backwards_[chunk]++);
  }
  void add(Op op, std::size_t chunk, int k) {
    const StageId stage = shape_.stage(position_, static_cast<int>(chunk));
    order_.push_back({op, stage, MicroBatch{k * shape_.replicas + replica_}});
  }

  const VirtualStages& shape_;
  int position_;
  int replica_;
  int count_;
  Order& order_;
  int forwards_[2] = {0, 0};
  int backwards_[2] = {0, 0};
};

}  // namespace

Orders v_turn_orders(const Workload& workload, const VirtualStages& shape) {
  Orders orders(to_size(workload.placement.world()));
  for (int replica = 0; replica < shape.replicas; ++replica) {
    const int count = own_count(workload.micro_batches, replica, shape.replicas);
    for (int position = 0; position < shape.ranks; ++position) {
      const Rank rank = workload.placement.ranks[to_size(position)][to_size(replica)];
      RankTurns(shape, position, replica, count, orders[rank.index()]).fill();
    }
  }
  return orders;
}

}  // namespace stagecraft
