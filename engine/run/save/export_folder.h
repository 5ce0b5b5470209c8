#pragma once

// The folder that an export becomes: written aside and put in its place whole, instead of an earlier export at
// most.

#include "base/describe.h"
#include "base/storage.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct ExportedFile {
  std::string name;
  std::int64_t bytes = 0;
};
template <class V>
void describe(V& v, ExportedFile& f) {
  v.required("name", f.name, "in this folder");
  v.required("bytes", f.bytes, "size");
}

/// stagecraft_export.json: where an export comes from, and what belongs to it.
struct ExportRecord {
  int format = 1;
  std::string checkpoint;
  std::int64_t step = 0;
  std::string model;
  std::string dtype;
  std::int64_t tensors = 0;
  std::int64_t numbers = 0;
  std::int64_t bytes = 0;
  std::optional<bool> averaged;  ///< absent: the run does not average weights
  std::vector<ExportedFile> files;
};
template <class V>
void describe(V& v, ExportRecord& r) {
  v.format(r.format, 1, "records of exports");
  v.required("checkpoint", r.checkpoint, "folder that was exported");
  v.required("step", r.step, "optimizer steps made", json::at_least(0));
  v.required("model", r.model, "name");
  v.required("dtype", r.dtype, "of numbers that are no integers");
  v.required("tensors", r.tensors, "written");
  v.required("numbers", r.numbers, "in them");
  v.required("bytes", r.bytes, "of them");
  v.optional("averaged", r.averaged, "weights are the run's moving average; absent: they are not");
  v.required("files", r.files, "all others in the folder");
}

inline constexpr const char* kExportRecord = "stagecraft_export.json";

class ExportFolder {
 public:
  /// Makes a folder beside `path`. Throws InputError where `path` is there and holds anything that no export
  /// wrote.
  explicit ExportFolder(const std::string& path);
  /// Removes what was not published.
  ~ExportFolder();
  ExportFolder(const ExportFolder&) = delete;
  ExportFolder& operator=(const ExportFolder&) = delete;

  [[nodiscard]] const std::string& aside() const { return aside_; }  ///< where to write
  /// Everything but the record is written and synced: `path` is the new export from now on. Throws InputError.
  void publish(const ExportRecord& record);

 private:
  std::string path_, aside_;
  StoredFilePtr held_;
};

}  // namespace stagecraft
