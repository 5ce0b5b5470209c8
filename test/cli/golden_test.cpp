// The whole output of every verb that needs no engine, on small inputs: test/golden/NAME.txt.

#include "test/support/catch.h"
#include "test/support/transcript.h"

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
