#include "stagecraft/engine/metrics/metrics.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"

#include <fmt/format.h>

#include <string_view>

namespace stagecraft {
namespace {

std::string line_of(const MetricsRecord& record) { return json::write(record).dump() + "\n"; }

/// Lines of ours have some hundred bytes; a hole that a power cut left may have any number.
constexpr std::size_t kLongestLine = std::size_t{1} << 16U;

/// The whole file in memory as the system pages it in; empty where there is none.
struct MappedText {
  std::shared_ptr<const char> memory;
  std::string_view text;
};

MappedText map_text(const std::string& path) {
  MappedText mapped;
  StoredFilePtr file;
  std::error_code error = storage().open(path, OpenFor::reading, file);
  if (error == std::errc::no_such_file_or_directory) return mapped;
  std::size_t bytes = 0;
  if (!error) error = file->map(mapped.memory, bytes);
  if (error) throw unreadable(path, error);
  mapped.text = {mapped.memory.get(), bytes};
  return mapped;
}

MetricsRecord record_of(std::string_view line, const InputPlace& place) {
  if (line.size() > kLongestLine) {
    throw InputError(place, fmt::format("has {} bytes; no line of metrics has", line.size()));
  }
  return json::read<MetricsRecord>(json::parse_text(std::string(line), place.file + ": " + place.pointer),
                                   place);
}

/// What a line is of; nothing for one that is broken. Asks for no more than it needs: lines of another
/// version of Stagecraft are history as well.
struct LineSubject {
  std::int64_t step = 0;
  bool validation = false;
};

std::optional<LineSubject> subject_of(std::string_view line) {
  if (line.size() > kLongestLine) return std::nullopt;
  try {
    const Json json = json::parse_text(std::string(line), "");
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_integer()) return std::nullopt;
    return LineSubject{json["step"].get<std::int64_t>(),
                       json.contains("validation") && json["validation"] == true};
  } catch (const InputError&) {
    return std::nullopt;
  }
}

}  // namespace

MetricsWriter::MetricsWriter(std::string path) : path_(std::move(path)), file_(open_to_append(path_)) {
  FileFacts facts;
  if (const std::error_code error = file_->facts(facts)) throw unwritable(path_, error);
  bytes_ = facts.bytes;
  sync_folder(folder_of(path_));  // the file's name must outlive a power cut as its lines do
}

void MetricsWriter::append(const MetricsRecord& record) {
  const std::string line = line_of(record);
  if (const std::error_code error = write_all(*file_, line)) {
    (void)file_->cut(bytes_);
    throw unwritable(path_, error);
  }
  bytes_ += line.size();
}

void MetricsWriter::sync() {
  if (const std::error_code error = file_->sync()) throw unwritable(path_, error);
}

std::vector<MetricsRecord> read_metrics(const std::string& path) {
  const MappedText mapped = map_text(path);
  std::vector<MetricsRecord> records;
  std::string_view rest = mapped.text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const bool last = end == std::string_view::npos || end + 1 == rest.size();
    try {
      records.push_back(record_of(rest.substr(0, end), {path, fmt::format("line {}", number)}));
    } catch (const InputError&) {
      if (!last) throw;
    }
    if (last) break;
    rest.remove_prefix(end + 1);
  }
  return records;
}

std::int64_t cut_metrics_back(const std::string& path, std::int64_t step, bool validation_owed) {
  const auto stays = [&](const LineSubject& line) {
    return line.step < step || (line.step == step && !(line.validation && validation_owed));
  };
  std::size_t end = 0, size = 0;
  std::int64_t last = -1;
  {
    const MappedText mapped = map_text(path);
    size = mapped.text.size();
    end = mapped.text.rfind('\n') + 1;  // what follows the last newline is the line a kill broke off
    // A broken line among those that go is of a power cut: the lines before were synced with the checkpoint.
    while (end > 0) {
      const std::size_t begin = end < 2 ? 0 : mapped.text.rfind('\n', end - 2) + 1;
      const auto subject = subject_of(mapped.text.substr(begin, end - 1 - begin));
      if (subject && stays(*subject)) {
        last = subject->step;
        break;
      }
      end = begin;
    }
  }
  if (end == size) return last;
  StoredFilePtr file;
  std::error_code error = storage().open(path, OpenFor::appending, file);
  if (!error) error = file->cut(end);
  if (!error) error = file->sync();
  if (error) throw unwritable(path, error);
  return last;
}

}  // namespace stagecraft
