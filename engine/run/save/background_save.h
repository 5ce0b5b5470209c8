#pragma once

// A checkpoint that is written while steps go on: each rank copies its state at the step boundary, and a thread of
// its own writes the copy. When all have written, which ranks learn beside their steps (trainer.cpp), rank 0's thread
// puts the checkpoint in its place. One at a time: the next one waits for it.

#include "engine/run/save/checkpoint.h"
#include "engine/run/save/snapshot.h"

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace stagecraft {

/// Belongs to the rank's thread. What is collective is called by all ranks alike.
class BackgroundSave {
 public:
  BackgroundSave(const RunSetup& setup, const RunPaths& paths) : setup_(setup), paths_(paths) {}
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// The same on all ranks: begin() was called, finish() was not.
  [[nodiscard]] bool begun() const { return begun_; }
  /// Of the one that was begun; the same on all ranks.
  [[nodiscard]] std::int64_t step() const { return step_; }
  /// This rank still writes.
  [[nodiscard]] bool writing() const { return begun_ && !written_; }
  /// Collective, with none begun. The failure is one that came at once: none is begun then.
  [[nodiscard]] Saved begin(const Worker& worker, Transport& transport, const SaveRequest& request);
  /// Collective, once nobody writes: rank 0 puts it in its place, on a thread. Nothing where that was asked before.
  void hand_over(Transport& transport);
  /// Collective: waits until it is in its place, or has failed.
  [[nodiscard]] Saved finish(Transport& transport);
  /// Not collective, before another save over other transports: this rank writes no more. What was begun counts only
  /// where it is in its place.
  void abandon();

 private:
  void write(const std::vector<int>& layers);
  void publish(const Manifest& manifest);
  void join();

  const RunSetup& setup_;
  const RunPaths& paths_;
  Snapshot snapshot_;
  bool begun_ = false, handed_over_ = false;
  std::int64_t step_ = -1;
  std::string aside_;  ///< the folder that it is written in
  Manifest manifest_;  ///< rank 0's, without files
  OlderCheckpoints older_ = OlderCheckpoints::go;
  std::thread writer_;  ///< then, on rank 0, who publishes
  std::atomic<bool> written_ = false;
  std::atomic<bool> abandoned_ = false;
  Json mine_;    ///< once written_: files and failure
  Saved saved_;  ///< rank 0's, once its thread has ended
};

}  // namespace stagecraft
