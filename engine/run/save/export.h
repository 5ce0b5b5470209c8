#pragma once

// A checkpoint as a folder that PyTorch loads: model.safetensors, or shards with their index, under PyTorch's
// names, and beside them what Hugging Face's from_pretrained reads.

#include "engine/run/save/export_folder.h"

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace stagecraft {

/// The type that numbers are written in.
enum class ExportType : std::uint8_t { as_they_are, float32, bfloat16, float16 };

struct ExportRequest {
  std::string from;                  ///< a run directory, or a checkpoint
  std::string out;                   ///< the folder to make
  std::optional<std::int64_t> step;  ///< absent: the newest
  std::string model;                 ///< model folder; empty: as the run's config says
  ExportType type = ExportType::as_they_are;
  std::uint64_t shard_bytes = 0;  ///< most of a file's tensors; 0: one file
  bool adapters = false;  ///< of a model with adapters of PEFT, as PeftModel.from_pretrained reads them
};

/// Bytes written by now, of how many; 0 of 0 while checkpoint files are held against their hashes. What it
/// throws ends the export.
using ExportProgress = std::function<void(std::uint64_t done, std::uint64_t all)>;

/// The folder appears whole or not at all. Throws InputError: no checkpoint, a corrupt one, a model folder that
/// is not here or does not fit, or whose frozen weights are not those of the run, adapters where it has none, an
/// output that is no export.
[[nodiscard]] ExportRecord export_weights(const ExportRequest& request, const ExportProgress& progress);

/// "5GB", "500 MB", "2GiB" or a number of bytes; at least 1.
[[nodiscard]] std::optional<std::uint64_t> shard_bytes(const std::string& text);

}  // namespace stagecraft
