#pragma once

// Checkpoints: a run's state at a step boundary (a drain point, for asynchronous schedules), as folders
//
//   checkpoints/step-00000100/
//     <layer>.safetensors   "parameter/weight", "buffer/running_mean", "optimizer/weight/exp_avg", ...
//     manifest.json         what the files are of, with a hash each
//     complete              empty; there once everything else is on disk
//
// A layer's state has a file of its own and knows no stage, so a synchronous run can go on with other stages.
// Folders are written aside (step-00000100.part) and renamed; one without `complete` does not count.

#include "engine/run/setup.h"
#include "engine/transport/transport.h"
#include "engine/worker.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct CheckpointFile {
  std::string name;
  std::int64_t bytes = 0;
  std::string hash;
};
template <class V>
void describe(V& v, CheckpointFile& f) {
  v.required("name", f.name, "in this folder");
  v.required("bytes", f.bytes, "size");
  v.required("hash", f.hash, "FNV-1a of the contents, 64 bits");
}

struct Manifest {
  int format = 1;
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t epoch_step = 0;
  bool validation_owed = false;
  Json training;    ///< training_identity() of the run
  int threads = 1;  ///< of a rank: sums are split over them, so other numbers of threads may round otherwise
  bool synchronous = true;
  std::optional<LossScaleState> loss_scale;  ///< float16
  Json pipeline;     ///< schedule, stage boundaries and, where there are several, replicas
  std::string data;  ///< fingerprints
  std::string model;
  std::vector<CheckpointFile> files;
};
template <class V>
void describe(V& v, Manifest& m) {
  v.required("format", m.format, "1");
  v.required("step", m.step, "optimizer steps made", json::at_least(0));
  v.required("epoch", m.epoch, "passes over the data completed", json::at_least(0));
  v.required("epoch_step", m.epoch_step, "steps made in the pass under way", json::at_least(0));
  v.required("validation_owed", m.validation_owed, "the validation due after this step was not made yet");
  v.required("training", m.training, "the part of the run's config that decides its numbers");
  v.required("threads_per_rank", m.threads, "a run that goes on with others may round otherwise",
             json::at_least(1));
  v.required("synchronous", m.synchronous, "false: goes on with the same pipeline only");
  v.required("pipeline", m.pipeline,
             "schedule, first layers of the stages, and their replicas where there are several");
  v.optional("loss_scale", m.loss_scale, "float16: of the steps to come");
  v.required("data", m.data, "fingerprint of the data");
  v.required("model", m.model, "fingerprint of the model");
  v.required("files", m.files, "one a layer with state");
  v.require(m.format == 1, "format", "expected 1; this checkpoint is of another version of Stagecraft");
}

/// Collective: a stage's first replica writes its layers, rank 0 the rest; older ones beyond checkpoint.keep
/// go. Returns the folder. Throws InputError when something cannot be written; what was there stays.
std::string save_checkpoint(const RunSetup& setup, const std::string& folder, const Worker& worker,
                            Transport& transport, std::int64_t step, bool validation_owed);

/// The validation that `checkpoint` says is owed was made: its manifest says so from now on.
void note_validation(const std::string& checkpoint);

/// The newest complete checkpoint in `folder` (a run's checkpoints/), "" when there is none.
[[nodiscard]] std::string newest_checkpoint(const std::string& folder);

/// Throws InputError: missing, broken.
[[nodiscard]] Manifest read_manifest(const std::string& checkpoint);

/// Throws InputError, naming what differs, where a run of `config` cannot go on from this state.
void check_resume(const Manifest& manifest, const std::string& checkpoint, const RunConfig& config,
                  const Materials& materials, const Plan& plan);

/// The layers that `worker` holds, optimizer state included. Every file is held against its hash first.
/// Throws InputError naming the file.
void load_checkpoint(const std::string& checkpoint, const Model& model, Worker& worker);

/// Weights and buffers only: a start from another run's, or another framework's, weights. Files that a
/// manifest lists are held against their hashes; without a manifest they are taken as they are.
void load_weights(const std::string& folder, const Model& model, Worker& worker);

/// The file of a layer: its name, with everything but letters, digits, '.', '_' and '-' as %XX.
[[nodiscard]] std::string layer_file(const std::string& layer);

}  // namespace stagecraft
