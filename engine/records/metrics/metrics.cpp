#include "engine/records/metrics/metrics.h"

#include "base/files.h"
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <string_view>

namespace stagecraft {
namespace {

std::string line_of(const MetricsRecord& record) { return json::write(record).dump() + "\n"; }

/// Lines of ours have some hundred bytes; a hole that a power cut left may have any number.
constexpr std::size_t kLongestLine = std::size_t{1} << 16U;

/// A text file, read from its end in windows.
class TextFromEnd {
 public:
  TextFromEnd(const std::string& path, const StoredFile& file) : path_(path), file_(file) {}

  /// Where the line begins that ends before `end`.
  std::uint64_t line_before(std::uint64_t end) {
    while (end > 0 && at(end - 1) != '\n') --end;
    return end;
  }
  std::string text(std::uint64_t begin, std::uint64_t end) const {
    std::string text(end - begin, '\0');
    read(begin, text);
    return text;
  }

 private:
  static constexpr std::uint64_t kWindow = std::uint64_t{1} << 16U;

  void read(std::uint64_t begin, std::string& text) const {
    const std::string what = read_exactly(file_, begin, text.data(), text.size());
    if (!what.empty()) throw InputError({path_, ""}, what);
  }
  char at(std::uint64_t position) {
    if (position < begin_ || position >= begin_ + window_.size()) {
      begin_ = position + 1 - std::min(position + 1, kWindow);
      window_.resize(position + 1 - begin_);
      read(begin_, window_);
    }
    return window_[position - begin_];
  }

  const std::string& path_;
  const StoredFile& file_;
  std::uint64_t begin_ = 0;
  std::string window_;
};

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
  make_line();
  newest_ = record;
  write_owed();
}

/// Where there is no memory for it, the record stays.
void MetricsWriter::make_line() {
  if (!newest_) return;
  owed_ += line_of(*newest_);
  newest_.reset();
}

void MetricsWriter::write_owed() {
  make_line();
  if (const std::error_code error = write_all(*file_, owed_)) {
    (void)file_->cut(bytes_);
    throw unwritable(path_, error);
  }
  bytes_ += owed_.size();
  owed_.clear();
}

void MetricsWriter::sync() {
  write_owed();
  if (const std::error_code error = file_->sync()) throw unwritable(path_, error);
}

std::vector<MetricsRecord> read_metrics(const std::string& path, std::vector<int>* left_out) {
  std::vector<MetricsRecord> records;
  if (!is_there(path)) return records;
  const std::string text = read_file(path, std::numeric_limits<std::uint64_t>::max());
  std::string_view rest = text;
  std::exception_ptr first;
  for (int number = 1; !rest.empty(); ++number) {
    const std::size_t end = rest.find('\n');
    const bool last = end == std::string_view::npos || end + 1 == rest.size();
    try {
      records.push_back(record_of(rest.substr(0, end), {path, fmt::format("line {}", number)}));
    } catch (const InputError&) {
      if (!last && first == nullptr) first = std::current_exception();
      if (!last && left_out != nullptr) left_out->push_back(number);
    }
    if (last) break;
    rest.remove_prefix(end + 1);
  }
  if (first != nullptr && (left_out == nullptr || records.empty())) std::rethrow_exception(first);
  return records;
}

std::optional<MetricsRecord> read_metrics_line(std::string_view line) {
  if (line.size() > kLongestLine) return std::nullopt;
  static const Json known = json::schema_of<MetricsRecord>()["properties"];
  try {
    Json record = json::parse_text(std::string(line), "");
    if (!record.is_object()) return std::nullopt;
    for (auto key = record.begin(); key != record.end();) {
      key = known.contains(key.key()) ? std::next(key) : record.erase(key);
    }
    return json::read<MetricsRecord>(record, {"", ""});
  } catch (const InputError&) {
    return std::nullopt;
  }
}

std::int64_t cut_metrics_back(const std::string& path, std::int64_t step, bool validation_owed) {
  const auto stays = [&](const LineSubject& line) {
    return line.step < step || (line.step == step && !(line.validation && validation_owed));
  };
  std::int64_t last = -1;
  StoredFilePtr file;
  FileFacts facts;
  std::error_code error = storage().open(path, OpenFor::reading, file);
  if (error == std::errc::no_such_file_or_directory) return last;
  if (!error) error = file->facts(facts);
  if (error) throw unreadable(path, error);
  TextFromEnd text(path, *file);
  std::uint64_t end =
      text.line_before(facts.bytes);  // what follows the last newline is the line a kill broke off
  // A broken line among those that go is of a power cut: the lines before were synced with the checkpoint.
  while (end > 0) {
    const std::uint64_t begin = text.line_before(end - 1);
    const auto subject = end - begin > kLongestLine ? std::nullopt : subject_of(text.text(begin, end - 1));
    if (subject && stays(*subject)) {
      last = subject->step;
      break;
    }
    end = begin;
  }
  (void)open_to_append(path);  // refuses what may be somebody else's
  replace_with_start(path, *file, end);
  return last;
}

}  // namespace stagecraft
