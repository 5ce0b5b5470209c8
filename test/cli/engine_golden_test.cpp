// The whole output of the verbs that need the engine, measured numbers masked (test/golden/train.txt).

#include "test/support/catch.h"
#include "test/support/transcript.h"

namespace {

// What a machine measures, and what follows from it. Sizes in bytes, counts and settings stay.
const stagecraft::test::TranscriptOptions kMeasured{
    .file_contents = false,
    .masks = {
        {"  bf16 .*\n", ""},                                           // of processors without them
        {"stagecraft: note: the repeats of a layer differ .*\n", ""},  // where others use the machine
        {R"re(("(?!warmup)[a-z0-9_]*(ms|per_second|loss|norm|accuracy)"): ?-?[0-9][-+.e0-9]*)re", "$1: #"},
        {R"re("peak_bytes": \[[^\]]*\])re", "\"peak_bytes\": #"},
        {R"re(\d+(\.\d+)?( k| M| G)? ?(samples/s|GFLOP/s))re", "# $3"},
        {R"re(\d+(\.\d+)? (us|ms|s)\b)re", "# s"},
        {R"re([-+]?\d+(\.\d+)? %)re", "# %"},
        {R"re(\d+\.\d{3,})re", "#"},  // losses, and times in columns
        {"(\\S) {2,}", "$1  "},       // columns are as wide as their numbers
        {"-{5,}", "-----"},
    }};

}  // namespace

TEST_CASE("train, profile and doctor are as they were", "[train_golden]") {
  stagecraft::test::check_transcript("train", kMeasured);
}
