#include "engine/run/metrics.h"

#include "schedules/base/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <unistd.h>

namespace stagecraft {
namespace {

std::string line_of(const MetricsRecord& record) { return json::write(record).dump() + "\n"; }

}  // namespace

MetricsWriter::MetricsWriter(std::string path) : path_(std::move(path)) {
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file_ < 0) throw InputError({path_, ""}, fmt::format("cannot be written: {}", std::strerror(errno)));
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

void MetricsWriter::append(const MetricsRecord& record) {
  const std::string line = line_of(record);
  const ssize_t written = ::write(file_, line.data(), line.size());
  if (written != static_cast<ssize_t>(line.size())) {
    throw InputError({path_, ""}, fmt::format("cannot be written: {}",
                                              written < 0 ? std::strerror(errno) : "the disk is full"));
  }
}

std::vector<MetricsRecord> read_metrics(const std::string& path) {
  std::vector<MetricsRecord> records;
  std::ifstream in(path);
  std::string line;
  for (int number = 1; std::getline(in, line); ++number) {
    const bool last = in.peek() == std::ifstream::traits_type::eof();
    const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded()) {
      if (last) break;
      throw InputError({path, fmt::format("line {}", number)}, "not valid JSON");
    }
    records.push_back(json::read<MetricsRecord>(json, {path, fmt::format("line {}", number)}));
  }
  return records;
}

void cut_metrics_back(const std::string& path, std::int64_t step, bool validation_owed) {
  if (!std::filesystem::exists(path)) return;
  std::string kept;
  for (const MetricsRecord& record : read_metrics(path)) {
    const bool again = record.step > step || (record.step == step && record.validation && validation_owed);
    if (!again) kept += line_of(record);
  }
  write_file_atomically(path, kept);
}

}  // namespace stagecraft
