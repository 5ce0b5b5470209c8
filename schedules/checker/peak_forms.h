#pragma once

// The proved memory of a program as a function of its stages' costs: what `check` says of a rank's peak, for one
// program and as many costs as one likes.
//
// At every moment of its list a rank holds so many of each of its stages' tensors (schedules/memory/held.h), which the
// program says, times their bytes, which the costs say. Moments that hold no more of anything than another one are
// left out, and few remain.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

class PeakForms {
 public:
  /// `program` is one that `check` accepts, of one synchronous step, without skips. `ties`: CostTable::ties.
  explicit PeakForms(const LoweredProgram& program, const std::vector<Bytes>& ties = {});

  [[nodiscard]] std::size_t ranks() const { return ranks_.size(); }
  /// The stages of a rank, ascending: all that its peak depends on.
  [[nodiscard]] const std::vector<StageId>& stages(std::size_t rank) const { return ranks_[rank].stages; }

  /// MemoryProof::peak with these costs; `stages` has those of the rank's stages, in their order. Null: a stage that
  /// holds nothing.
  [[nodiscard]] Bytes peak(std::size_t rank, const std::vector<const StageCosts*>& stages, Bytes loss) const;

 private:
  /// A kind of bytes of one of the rank's stages.
  struct Column {
    enum class If : std::uint8_t { always, output_kept, output_not_kept };
    std::size_t stage;         ///< among the rank's
    Bytes StageCosts::*bytes;  ///< null: sum_staging
    If condition;
    std::optional<Bytes> given{};  ///< a tied weight's, whatever the stages cost
    bool operator==(const Column&) const = default;
  };
  /// What an action takes while it runs.
  struct Transient {
    std::size_t stage;
    Op op;
    bool recomputed;
    bool operator==(const Transient&) const = default;
  };
  /// So many of each column's bytes, and what the action takes; `losses` under way.
  struct Form {
    std::vector<std::int32_t> counts;
    int losses = 0;
    int transient = -1;  ///< none
  };
  struct RankForms {
    std::vector<StageId> stages;
    std::vector<Column> columns;
    std::vector<Transient> transients;
    std::vector<std::int32_t> fixed;  ///< of each column, all the time
    int fixed_losses = 0;
    std::vector<int> replicas;  ///< of each stage
    std::vector<Form> forms;
  };
  friend class PeakFormsMaker;

  std::vector<RankForms> ranks_;
};

}  // namespace stagecraft
