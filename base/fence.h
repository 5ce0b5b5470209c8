#pragma once

// Keeps this process from changing a folder that another process has taken: a run that was stopped or cut off, wakes up,
// and does not know that it was started again elsewhere. Locks do not do that alone: some file systems give one to a
// process of every machine, and a rank may outlive the process that holds it.
//
// Between the last look and the change a process may be stopped for hours. What is published by a rename is safe all the
// same, if it is written aside (files.h) and who takes the folder first says so, then removes all names aside, and then
// reads: a look before the taking means that the name aside was there before it too, so the rename comes before the
// removal, or finds nothing to rename. For what is appended to, who takes the folder puts a copy in its place.

#include "base/storage.h"

#include <functional>
#include <memory>
#include <string>

namespace stagecraft {

/// While it lives, each call of this process, of whatever thread, that makes, replaces, removes or appends to anything
/// below a folder looks first whether the folder is still this process's. Only making and writing what has a name aside
/// does not: it counts for nothing until it is renamed. Of several fences around a folder the newest counts.
class Fence {
 public:
  /// Throws TakenOverError where somebody else has the folder; returns an error where that cannot be told, and the call
  /// fails with it. Called from any thread.
  using Look = std::function<std::error_code()>;

  /// `folder`: absolute.
  Fence(const std::string& folder, Look look);
  ~Fence();
  Fence(const Fence&) = delete;
  Fence& operator=(const Fence&) = delete;

  struct Fenced;

 private:
  std::shared_ptr<const Fenced> fenced_;
};

}  // namespace stagecraft
