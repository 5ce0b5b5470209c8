#include "csv.h"

#include <ATen/ATen.h>

#include <charconv>
#include <fstream>
#include <vector>

namespace {

using stagecraft::InputError, stagecraft::Split;

class Csv final : public stagecraft::Dataset {
 public:
  /// The last `validation` share of the rows of `table` is for validation.
  Csv(at::Tensor table, double validation, std::string fingerprint)
      : table_(std::move(table)),
        training_(static_cast<std::int64_t>(static_cast<double>(table_.size(0)) * (1 - validation))),
        fingerprint_(std::move(fingerprint)) {}

  std::int64_t size(Split split) const override {
    return split == Split::train ? training_ : table_.size(0) - training_;
  }
  stagecraft::SampleSpec sample() const override {
    return {{table_.size(1) - 1}, at::kFloat, 1, stagecraft::Targets::values};
  }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    return rows(split, indices).narrow(1, 0, table_.size(1) - 1);
  }
  at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return rows(split, indices).narrow(1, table_.size(1) - 1, 1);
  }
  std::string fingerprint() const override { return fingerprint_; }
  std::string summary() const override {
    return "csv, " + std::to_string(table_.size(0)) + " rows of " + std::to_string(table_.size(1)) +
           " numbers";
  }

 private:
  at::Tensor rows(Split split, const std::vector<std::int64_t>& indices) const {
    return table_.index_select(0, at::tensor(indices) + (split == Split::train ? 0 : training_));
  }

  at::Tensor table_;  // [rows, columns]
  std::int64_t training_;
  std::string fingerprint_;
};

}  // namespace

void describe(stagecraft::Fields& f, CsvSettings& s) {
  f.optional("path", s.path, "a file of numbers; the last column is the target",
             stagecraft::json::non_empty());
  f.optional("validation", s.validation, "share of the rows, taken from the end",
             stagecraft::json::from_up_to(0, 1));
}

std::unique_ptr<stagecraft::Dataset> open_csv(const CsvSettings& s, const stagecraft::InputPlace& data) {
  const stagecraft::InputPlace place{data.file, data.pointer + "/path"};
  std::ifstream file(s.path);
  if (!file) throw InputError(place, "\"" + s.path + "\" cannot be opened");
  std::vector<float> numbers;
  std::int64_t rows = 0;
  std::uint64_t fingerprint = 14695981039346656037ULL;  // FNV-1a
  for (std::string line; std::getline(file, line); ++rows) {
    const char* at = line.data();
    const char* const end = at + line.size();
    for (const char c : line) fingerprint = (fingerprint ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
    while (at < end) {
      const auto [next, error] = std::from_chars(at, end, numbers.emplace_back());
      if (error != std::errc{} || (next < end && *next != ',')) {
        throw InputError(place,
                         s.path + ", line " + std::to_string(rows + 1) + ": expected numbers and commas");
      }
      at = next + 1;
    }
  }
  const auto count = static_cast<std::int64_t>(numbers.size());
  if (rows == 0 || count % rows != 0 || count / rows < 2) {
    throw InputError(place, s.path + ": expected lines of equally many numbers, two or more");
  }
  return std::make_unique<Csv>(at::tensor(numbers).view({rows, count / rows}), s.validation,
                               std::to_string(fingerprint));
}
