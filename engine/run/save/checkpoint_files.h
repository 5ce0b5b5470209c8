#pragma once

// What a checkpoint is made of on disk: a file per layer, and the manifest. Who writes which, and when, is
// checkpoint.h's and background_save.h's.

#include "base/json.h"
#include "engine/core/worker.h"
#include "engine/records/metrics/manifest.h"
#include "engine/run/resolve/setup.h"

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

[[nodiscard]] bool has_state(const Layer& layer);

/// A layer as it is saved.
struct SavedLayer {
  LayerState state;
  std::vector<std::string> hashes;  ///< by buffer: of those that the model folder brought; "" of others
};
/// Its tensors are the worker's own where these are the CPU's.
[[nodiscard]] SavedLayer saved_layer(const Worker& worker, const Model& model, int index);

/// Those that `rank` writes: a stage's first replica writes its layers.
[[nodiscard]] std::vector<int> layers_saved_by(const RunSetup& setup, Rank rank);

/// Each is read back and compared. Returns them as the manifest lists them. Throws InputError. Reads of `setup` nothing
/// that changes: any thread may call it.
[[nodiscard]] Json write_layers(const RunSetup& setup, const std::vector<int>& layers,
                                const std::string& folder,
                                const std::function<const SavedLayer&(int layer)>& saved);

/// A new file, read back and compared. Throws InputError.
void write_compared(const std::string& path, const std::vector<std::string_view>& pieces);

/// Hands the file's bytes to `take` in pieces. Throws InputError: missing, or no file, or it cannot be read,
/// which says nothing of what is in it.
void read_through(const std::string& path, const std::function<void(std::string_view)>& take);

/// What the disk has against `work`; "": nothing.
[[nodiscard]] std::string why_not(const std::function<void()>& work);

/// Throws InputError where the file does not have these bytes.
void compare_with_file(const std::string& path, std::vector<std::string_view> pieces);

/// Schedule, cuts and widths: what an asynchronous run must go on with, since its delays follow from them.
[[nodiscard]] Json pipeline_of(const Plan& plan);

/// Without files, and without a loss scale.
[[nodiscard]] Manifest manifest_of(const RunSetup& setup, const std::string& run, std::int64_t step,
                                   bool validation_owed);

}  // namespace stagecraft
