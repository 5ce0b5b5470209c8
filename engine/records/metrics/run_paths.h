#pragma once

// What lies in a run directory:
//
//   config.json      the effective configuration          plan.json      the plan that ran
//   metrics.jsonl    one line per step and validation     timeline.json  Chrome trace of the last steps
//   summary.json     times, memory, last losses           exit.json      after a failure: who failed, and how
//   logs/rank-N.log  one log per rank                     checkpoints/   step-00000100/, ...
//   live/rank-N.json while it goes: a rank's last steps   profile.json   what the plan was made from
//   shares/rank-N.json  where its time went, over the run

#include "base/ids.h"

#include <array>
#include <string>

namespace stagecraft {

/// The names above, under one root. A plain value; touches no file.
struct RunPaths {
  std::string root;
  std::string session =
      {};                ///< of the start that has taken it (run_holder.h), on all its ranks; "": nobody's
  std::string run = {};  ///< the run's identity, the same for all its sessions and in all its checkpoints

  [[nodiscard]] std::string config() const { return root + "/config.json"; }
  [[nodiscard]] std::string plan() const { return root + "/plan.json"; }
  [[nodiscard]] std::string profile() const { return root + "/profile.json"; }
  [[nodiscard]] std::string metrics() const { return root + "/metrics.jsonl"; }
  [[nodiscard]] std::string timeline() const { return root + "/timeline.json"; }
  [[nodiscard]] std::string summary() const { return root + "/summary.json"; }
  [[nodiscard]] std::string exit_record() const { return root + "/exit.json"; }
  [[nodiscard]] std::string checkpoints() const { return root + "/checkpoints"; }
  [[nodiscard]] std::string logs() const { return root + "/logs"; }
  [[nodiscard]] std::string log(Rank rank) const {
    return logs() + "/rank-" + std::to_string(rank.value) + ".log";
  }
  [[nodiscard]] std::string live() const { return root + "/live"; }
  [[nodiscard]] std::string live(Rank rank) const {
    return live() + "/rank-" + std::to_string(rank.value) + ".json";
  }
  [[nodiscard]] std::string shares() const { return root + "/shares"; }
  [[nodiscard]] std::string shares(Rank rank) const {
    return shares() + "/rank-" + std::to_string(rank.value) + ".json";
  }
  [[nodiscard]] std::string lock() const { return root + "/.lock"; }
  [[nodiscard]] std::string owner() const { return root + "/.owner"; }
  /// What following a run leaves in it, which may be there before the run is (python/stagecraft_follow).
  [[nodiscard]] std::array<std::string, 2> followed() const {
    return {root + "/follow", root + "/tensorboard"};
  }
};

}  // namespace stagecraft
