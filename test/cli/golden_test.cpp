// The whole output of every verb that needs no engine, on small inputs: test/golden/NAME.txt.

#include "test/support/catch.h"
#include "test/support/scratch_folder.h"
#include "test/support/transcript.h"

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>

using stagecraft::test::check_transcript;

TEST_CASE("help, schemas and bad usage are as they were", "[golden_usage]") { check_transcript("usage"); }
TEST_CASE("check is as it was", "[golden_check]") { check_transcript("check"); }
TEST_CASE("convert is as it was", "[golden_convert]") { check_transcript("convert"); }
TEST_CASE("simulate is as it was", "[golden_simulate]") { check_transcript("simulate"); }
TEST_CASE("plan is as it was", "[golden_plan]") { check_transcript("plan"); }
TEST_CASE("plan with choices and explanations is as it was", "[golden_choose]") {
  check_transcript("choose");
}
TEST_CASE("plan of PipeDream's graphs is as it was", "[golden_pipedream]") { check_transcript("pipedream"); }
TEST_CASE("report, and plan from a run, are as they were", "[golden_report]") { check_transcript("report"); }

// Refusals and notes are one line for programs, and wrapped where standard error is a terminal (base/wrapped.h).
TEST_CASE("no text on standard output is wider than 120 columns", "[golden_width]") {
  int lines = 0;
  for (const auto& file : std::filesystem::directory_iterator(STAGECRAFT_TEST_DATA "/../golden")) {
    if (file.path().extension() != ".txt") continue;
    std::istringstream transcript(stagecraft::test::read_text_file(file.path()));
    std::string line;
    bool is_text = false;
    while (std::getline(transcript, line)) {
      const bool is_command = line.starts_with("$ ") || line.starts_with("> ");
      if (line.starts_with("$ ")) is_text = line.starts_with("$ stagecraft ");
      // Documents, and schedules as text: for programs.
      for (const char* document : {" --json", " schema", " convert", " --set", "; cat", "&& cat"}) {
        if (is_command && line.find(document) != std::string::npos) is_text = false;
      }
      if (line.starts_with("[")) is_text = false;
      if (!is_text || is_command) continue;
      ++lines;
      const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; });
      INFO(file.path() << ": " << line);
      CHECK(columns <= 120);
    }
  }
  CHECK(lines > 1000);
}
