#include "csv.h"
#include "huber.h"

int main(int argc, char** argv) {
  stagecraft::data_sets().add<CsvSettings>("csv", open_csv,
                                           {.doc = "a table of numbers", .location_keys = {"path"}});
  stagecraft::losses().add<HuberSettings>("huber", make_huber,
                                          {.doc = "squared near 0, linear beyond delta"});
  return stagecraft::run_command_line(argc, argv);
}
