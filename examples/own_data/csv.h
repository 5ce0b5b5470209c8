#pragma once

// A data set of one's own: {"type": "csv", "path": "points.csv"}. Numbers, one sample per line; the last
// column is the target of a regression.

#include <memory>
#include <stagecraft/engine.h>
#include <string>

struct CsvSettings {
  std::string path = "points.csv";
  double validation = 0.2;
};
void describe(stagecraft::Fields& f, CsvSettings& s);

std::unique_ptr<stagecraft::Dataset> open_csv(const CsvSettings& s, const stagecraft::InputPlace& data);
