// What a build without the engine prints when asked to train: test/golden/no_engine.txt.

#include "test/support/catch.h"
#include "test/support/transcript.h"

TEST_CASE("a build without the engine says so when asked to train", "[no_engine]") {
  stagecraft::test::check_transcript("no_engine");
}
