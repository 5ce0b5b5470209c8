#pragma once

// A small run on a simulated disk: its config is /run.json, its directory /runs/one.

#include "base/json.h"
#include "engine/run/start/train.h"
#include "test/support/simulated_disk.h"

#include <functional>
#include <memory>
#include <string>

namespace stagecraft::test {

inline constexpr const char* kStoredRun = R"({
    "model": {"family": "mlp", "hidden": [6]},
    "data": {"type": "synthetic", "samples": 24, "validation_samples": 8, "shape": [4], "classes": 3},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 4,
    "train_steps": 4,
    "threads_per_rank": 1,
    "steps_per_print": 0,
    "profiler": {"repeats": 1, "warmup_ms": 0},
    "pipeline": {"schedule": "1f1b", "cuts": [1]},
    "validation": {"every_steps": 2},
    "checkpoint": {"every_steps": 1, "keep": 1},
    "log": {"timeline_steps": 1},
    "run_dir": "/runs/one"
  })";

/// `change`: of the config.
inline std::unique_ptr<SimulatedDisk> disk_with_run(const std::function<void(Json&)>& change) {
  Json config = json::parse_text(kStoredRun, "config");
  change(config);
  auto disk = std::make_unique<SimulatedDisk>();
  disk->write("/run.json", config.dump());
  return disk;
}

/// `train` of that run, which says nothing but what `output` lets it. Throws what it throws.
inline TrainResult train_on(SimulatedDisk& disk, bool resume, TrainOutput output = {}) {
  const StorageInstead instead(disk);
  TrainRequest request;
  request.config = "/run.json";
  request.resume = resume;
  output.note = [](const std::string&) {};
  return train(request, output);
}

}  // namespace stagecraft::test
