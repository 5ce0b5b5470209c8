#pragma once

// manifest.json: what a checkpoint is of, and what its files must be. Needs no LibTorch.

#include "base/json.h"
#include "base/plain_name.h"
#include "engine/records/settings/loss_scale.h"
#include "engine/records/settings/resume_change.h"
#include "engine/records/settings/threads.h"

#include <cstdint>
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
  v.require(is_plain_name(f.name, ".safetensors"), "name",
            "expected the name of a .safetensors file of this folder, found " + json::brief(Json(f.name)));
  v.required("bytes", f.bytes, "size", json::at_least(0));
  v.required("hash", f.hash, "XXH3 of the contents, 64 bits");
}

/// The learning rate that a program gave its steps, in place of the config's.
struct GivenRate {
  std::optional<double> lr;  ///< of the newest step, or of all to come
  bool each_step = false;    ///< by a function of the step, which is in no file
};
template <class V>
void describe(V& v, GivenRate& r) {
  v.optional("lr", r.lr, "of the newest step, or, without `each_step`, of all to come", json::at_least(0));
  v.optional("each_step", r.each_step, "by a function of the program's, which is in no file");
  v.require(r.lr.has_value() || r.each_step, "lr", "expected the rate, or each_step");
}

struct Manifest {
  int format = 2;
  std::string run;  ///< identity of the run, of all its sessions: "run.<16 random hex digits>"
  std::int64_t step = 0;
  std::int64_t epoch = 0;
  std::int64_t epoch_step = 0;
  bool validation_owed = false;
  Json training;    ///< training_identity() of the run
  int threads = 1;  ///< per rank: sums are split over them, so other numbers of threads may round otherwise
  bool synchronous = true;
  std::optional<LossScaleState> loss_scale;  ///< float16
  std::optional<GivenRate> given_rate;       ///< absent: the config's
  Json pipeline;     ///< schedule, stage boundaries and, where there are several, replicas
  std::string data;  ///< fingerprints
  std::string model;
  std::vector<ResumeChange> changes;  ///< of `training`, by the resumes before
  std::vector<CheckpointFile> files;
  std::string hash;  ///< of all other keys; manifest_text() puts it in
};
template <class V>
void describe(V& v, Manifest& m) {
  v.format(m.format, 2, "checkpoints");
  v.required("run", m.run, "the run that wrote it: it removes no other's checkpoints");
  v.required("step", m.step, "optimizer steps made", json::at_least(0));
  v.required("epoch", m.epoch, "passes over the data completed", json::at_least(0));
  v.required("epoch_step", m.epoch_step, "steps made in the pass under way", json::at_least(0));
  v.required("validation_owed", m.validation_owed, "the validation due after this step was not made yet");
  v.required("training", m.training, "the part of the run's config that decides its numbers");
  v.required("threads_per_rank", m.threads, "a run that goes on with others may round otherwise",
             json::between(1, kMostThreadsPerRank));
  v.required("synchronous", m.synchronous, "false: goes on with the same pipeline only");
  v.required("pipeline", m.pipeline,
             "schedule, first layers of the stages, and their replicas where there are several");
  v.optional("loss_scale", m.loss_scale, "float16: of the steps to come");
  v.optional("given_rate", m.given_rate, "of a program that stepped the run itself; absent: the config's");
  v.required("data", m.data, "fingerprint of the data");
  v.required("model", m.model, "fingerprint of the model");
  v.optional("changes", m.changes, "what resumes have changed in the config (train --resume --allow)");
  v.required("files", m.files, "one per layer with state");
  v.required("hash", m.hash, "XXH3 of all other keys, as compact JSON");
}

inline constexpr const char* kManifestName = "manifest.json";

/// What is in the file, with the hash that it must have.
[[nodiscard]] std::string manifest_text(const Manifest& manifest);

/// Throws InputError: missing, broken, changed since it was written.
[[nodiscard]] Manifest read_manifest(const std::string& checkpoint);

}  // namespace stagecraft
