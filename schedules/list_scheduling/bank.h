#pragma once

// What ranks keep while orders are made, and whether a forward can be taken (Dijkstra's banker).

#include "schedules/list_scheduling/list_scheduler.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

class Bank {
 public:
  /// Keeps references to both.
  Bank(const Workload& workload, const KeepLimit& limit)
      : limit_(limit),
        micro_batches_(to_size(workload.micro_batches)),
        room_(limit.capacity),
        accounts_(room_.size()) {
    const Placement& placement = workload.placement;
    for (Account& account : accounts_) account.of.resize(micro_batches_);
    for (int s = 0; s < placement.stages(); ++s) {
      for (int mb = 0; mb < workload.micro_batches; ++mb) {
        Account& account = accounts_[placement.rank_of(StageId{s}, MicroBatch{mb}).index()];
        auto& to_come = account.of[to_size(mb)].to_come;
        to_come += limit.forward[to_size(s)];
        account.most = std::max(account.most, to_come);
      }
    }
  }

  /// Whether `rank` could finish its micro-batches oldest first if it took this forward now.
  [[nodiscard]] bool lends(Rank rank, StageId stage, MicroBatch micro_batch) {
    const std::int64_t amount = limit_.forward[stage.index()];
    std::int64_t room = room_[rank.index()] - amount;
    if (room < 0) return false;
    Account& account = accounts_[rank.index()];
    const auto finished = [&](std::size_t i) {
      return account.of[i].held == 0 && account.of[i].to_come == 0;
    };
    while (account.oldest < micro_batches_ && finished(account.oldest)) ++account.oldest;
    // Once there is room for what any micro-batch needs, there is for all that follow.
    for (std::size_t i = account.oldest; room < account.most; ++i) {
      const std::int64_t change = i == micro_batch.index() ? amount : 0;
      if (account.of[i].to_come - change > room) return false;
      room += account.of[i].held + change;
    }
    return true;
  }

  /// A forward, input gradient or weight gradient begins.
  void take(Rank rank, const Compute& compute) {
    const std::int64_t forward = limit_.forward[compute.stage.index()];
    const std::int64_t weight = limit_.weight[compute.stage.index()];
    auto& of = accounts_[rank.index()].of[compute.micro_batch.index()];
    const std::int64_t amount = compute.op == Op::forward          ? forward
                                : compute.op == Op::backward_input ? weight - forward
                                                                   : -weight;
    room_[rank.index()] -= amount;
    of.held += amount;
    if (compute.op == Op::forward) of.to_come -= forward;
  }

 private:
  struct OfMicroBatch {
    std::int64_t held = 0;
    std::int64_t to_come = 0;  ///< by forwards not yet done
  };
  struct Account {
    std::vector<OfMicroBatch> of;
    std::size_t oldest = 0;  ///< no micro-batch before it is unfinished
    std::int64_t most = 0;   ///< what one micro-batch needs at most
  };

  const KeepLimit& limit_;
  std::size_t micro_batches_;
  std::vector<std::int64_t> room_;  // [rank]
  std::vector<Account> accounts_;   // [rank]
};

}  // namespace stagecraft
