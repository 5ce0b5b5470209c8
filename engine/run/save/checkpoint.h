#pragma once

// Checkpoints: a run's state at a step boundary (a drain point, for asynchronous schedules), as folders
//
//   checkpoints/step-00000100/
//     <layer>.safetensors   "parameter/weight", "buffer/running_mean", "optimizer/weight/exp_avg", ...; of frozen
//                           weights, which the model folder has, a hash in its metadata: "brought/weight"
//     manifest.json         what the files are of, with a hash each; written when they are on disk
//
// A layer's state has a file of its own and knows no stage, so a synchronous run can go on with other stages.
// The folder's own life, written aside and put in its place, is checkpoint_folder.h's.

#include "engine/core/worker.h"
#include "engine/records/metrics/manifest.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/save/run_dir.h"
#include "engine/transport/transport.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct Saved {
  /// Why there is no checkpoint.
  struct Failure {
    Rank rank;         ///< whose write failed
    std::string what;  ///< the place and the reason
  };

  std::string folder;              ///< "" where there is none
  std::optional<Failure> failure;  ///< the same on all ranks
  std::vector<std::string> notes;  ///< older checkpoints that could not be removed, for the log
};

enum class OlderCheckpoints : std::uint8_t { go, stay };

/// What is saved.
struct SaveRequest {
  std::int64_t step = 0;         ///< made
  bool validation_owed = false;  ///< after it
  OlderCheckpoints older = OlderCheckpoints::go;
  std::optional<GivenRate> given_rate{};  ///< where a program steps it
  /// What this rank has to bring to the disk first; an InputError of it is the checkpoint's.
  std::function<void()> first = [] {};
};

/// Collective: a stage's first replica writes its layers, rank 0 the rest; older ones beyond checkpoint.keep
/// go, unless they are to stay. Every file is read back and compared with memory before the folder counts. Where something
/// cannot be written, nothing of the checkpoint is left and what was there stays. All are through when it returns.
/// `unfinished`: the folder that is being written, until it is whole, or gone. On an exception it stays: other ranks
/// write into it still, and the disk may hang.
Saved save_checkpoint(const RunSetup& setup, const RunPaths& paths, const Worker& worker,
                      Transport& transport, const SaveRequest& request, std::string& unfinished);

/// The validation that `checkpoint` says is owed was made: its manifest says so from now on.
void note_validation(const std::string& checkpoint);

/// The layers that `worker` holds, optimizer state included. Every file is held against its hash first.
/// Throws InputError naming the file: corrupt, unreadable, or not exactly the tensors that there must be.
void load_checkpoint(const std::string& checkpoint, const Model& model, const ModelOptimizer& optimizer,
                     Worker& worker);

/// Weights and buffers only: a start from another run's, or another framework's, weights. Files that a
/// manifest lists are held against their hashes; without a manifest they are taken as they are. A file whose
/// metadata names another layer is refused.
void load_weights(const std::string& folder, const Model& model, Worker& worker);

/// Throws InputError unless the manifest lists the file and it is what was written: a file of its size, with
/// its hash. No more than its size is read. `meanwhile` is called again and again while it is.
void check_checkpoint_file(const std::string& checkpoint, const Manifest& manifest, const std::string& name,
                           const std::function<void()>& meanwhile = nullptr);

/// The file of a layer: its name, with everything but letters, digits, '.', '_' and '-' as %XX. A name that
/// file systems would not take is cut and ends in '~' and its fingerprint.
[[nodiscard]] std::string layer_file(const std::string& layer);

/// Where a layer's file has the hash of a frozen weight, in its metadata.
[[nodiscard]] std::string brought_key(const std::string& name);
/// Says that the frozen weight `name` in the model folder is not the one that the run of `checkpoint` was made with.
[[nodiscard]] InputError other_frozen_weight(const std::string& name, const std::string& model,
                                             const std::string& checkpoint);

/// Bytes of one checkpoint of the model on disk, give or take the files' headers.
[[nodiscard]] std::uint64_t checkpoint_bytes(const RunSetup& setup);

}  // namespace stagecraft
