#include "schedules/program/program.h"

#include "base/json.h"
#include "schedules/costs/costs.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

namespace stagecraft {
namespace {

const std::string kGood =
    "stagecraft program 1\n"
    "schedule mine\n"
    "kind train\n"
    "stages 0 1\n"
    "groups 2\n"
    "rank 0: L0 F0 L1 F1 B0 B1 S0 P0\n"
    "rank 1: L0 F0 B0 L1 F1 P0 B1 S0\n";

template <class Call>
std::string message_of(const Call& call) {
  try {
    call();
  } catch (const InputError& error) {
    return error.what();
  }
  return "no error";
}

std::string text_error(const std::string& text) {
  return message_of([&] { (void)program_from_text(text, "a.txt"); });
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

std::string json_error(const char* pointer, const Json& value) {
  Json json = to_json(program_from_text(kGood, "a.txt"));
  json[Json::json_pointer(pointer)] = value;
  return message_of([&] { (void)program_from_json(json, "a.json"); });
}

}  // namespace

TEST_CASE("every generated program survives text and JSON", "[program]") {
  REQUIRE(rc::check([] {
    const ScheduleProgram program = *rc::gen::inRange(0, 8) == 0
                                        ? validation_program(random_shared(), *rc::gen::inRange(1, 9))
                                        : random_program().program;
    RC_ASSERT(program_from_text(to_text(program), "x") == program);
    const Json json = to_json(program);
    RC_ASSERT(program_from_json(json::parse_text(json.dump(), "x"), "x") == program);
  }));
}

TEST_CASE("text written by people: comments, blanks, defaults and all letters", "[program]") {
  const auto program = program_from_text(
      "\n# by hand\r\n  stagecraft   program 1 # first\nstages 0,1\t2 \ngroups 2x1 2\n"
      "rank 2: I0v1 W0 R1 S1v0 N2 # split\nrank 1: A0 S1\nrank 0: 1F3\n",
      "x");
  CHECK(program.schedule == "custom");
  CHECK(program.kind == SegmentKind::train);
  CHECK(program.group_sizes == std::vector<int>{1, 1, 2});
  CHECK(program.placement == Placement{{{Rank{0}, Rank{1}}, {Rank{2}}}});
  REQUIRE(program.ranks[2].size() == 5);
  CHECK(program.ranks[2][0] == Action{.op = Op::backward_input,
                                      .stage = StageId{1},
                                      .micro_batch = MicroBatch{0},
                                      .version = Version{1},
                                      .group = Group{0}});
  CHECK(program.ranks[2][3].version == Version{0});
  CHECK(program.ranks[2][4] == Action{.op = Op::agree_norm, .group = Group{2}});
  CHECK(program.ranks[1][1].version == Version{1});  // a step's default is its group's number
  CHECK(program.ranks[0][0].group == Group{2});
  CHECK(program.ranks[0][0].stage == StageId{1});  // not its stage: for the checker to refuse
}

TEST_CASE("bad text is refused with file and line", "[program]") {
  CHECK(text_error(kGood) == "no error");
  CHECK(text_error("") == "a.txt: line 0: expected \"stagecraft program 1\", found an empty file");
  CHECK(text_error("{}") ==
        "a.txt: line 1: expected \"stagecraft program 1\" as the first line, found \"{}\"");
  CHECK(text_error("stagecraft program 2\n").find("a.txt: line 1: expected \"stagecraft program 1\"") == 0);
  CHECK(text_error("stagecraft program 1\n") == "a.txt: line 1: no \"rank\" line before the end of the file");
  CHECK(text_error(replaced(kGood, "stages", "stage")).find("a.txt: line 4: expected \"schedule\"") == 0);
  CHECK(text_error(replaced(kGood, "stages", "stage")).find("did you mean \"stages\"?") != std::string::npos);
  CHECK(text_error(replaced(kGood, "stages 0 1\n", "")) ==
        "a.txt: line 5: \"stages\" must stand before the ranks");
  CHECK(text_error(replaced(kGood, "groups 2\n", "")) ==
        "a.txt: line 5: \"groups\" must stand before the ranks");
  CHECK(text_error(replaced(kGood, "kind train", "kind tain"))
            .find("a.txt: line 3: expected one of \"train\", \"validate\", found \"tain\"") == 0);
  CHECK(text_error(replaced(kGood, "kind train", "kind")) == "a.txt: line 3: \"kind\" needs a value");
  CHECK(text_error(replaced(kGood, "kind train", "kind train x")) ==
        "a.txt: line 3: expected one word after \"kind\", found 2");
  CHECK(text_error(replaced(kGood, "kind train", "groups 2\ngroups 2")) ==
        "a.txt: line 4: \"groups\" was said before");
  CHECK(text_error(replaced(kGood, "0 1", "0 0,")).find("a.txt: line 4: expected the ranks of a stage") == 0);
  CHECK(text_error(replaced(kGood, "0 1", "0 2")).find("a.txt: line 6: stage 1 is on rank 2") == 0);
  CHECK(text_error(replaced(kGood, "0 1", "0 2000000000")).find("a.txt: line 6: stage 1") == 0);
  CHECK(text_error(replaced(kGood, "0 1", "0 99999999999")).find("a.txt: line 4: expected the ranks") == 0);
  CHECK(text_error(replaced(kGood, "groups 2", "groups 0")).find("a.txt: line 5: expected a group's") == 0);
  CHECK(text_error(replaced(kGood, "groups 2", "groups 2000000000x2000000000"))
            .find("a.txt: line 5: expected at most 10000000 micro-batches") == 0);
  CHECK(text_error(replaced(kGood, "B0", "Q0")) ==
        "a.txt: line 6: expected an action such as F0, 1B3 or F4v2, found \"Q0\"");
  for (const char* bad :
       {"B", "B-1", "B0v", "B0x", "B99999999999", "0", "99999999999B0", "b0", "B 0", "B0v9v9"}) {
    INFO(bad);
    CHECK(text_error(replaced(kGood, "B0", bad)).find("a.txt: line 6: expected an action") == 0);
  }
  CHECK(text_error(replaced(kGood, "B0", "B2")) ==
        "a.txt: line 6: B2: micro-batch 2 is not in the program, which has 2 of them");
  CHECK(text_error(replaced(kGood, "B0", "2B0")) ==
        "a.txt: line 6: 2B0: stage 2 is not in the program, which has 2 of them");
  CHECK(text_error(replaced(kGood, "S0", "S1")) ==
        "a.txt: line 6: S1: group 1 is not in the program, which has 1 of them");
  CHECK(text_error(replaced(kGood, "B0", "B0v2")) ==
        "a.txt: line 6: B0v2: version 2 never exists: 1 groups make versions 0 to 1");
  CHECK(text_error(replaced(kGood, "L0", "L0v0")) == "a.txt: line 6: L0v0: load has no version");
  CHECK(text_error(replaced(kGood, "S0", "0N0")) == "a.txt: line 6: 0N0: agree_norm has no stage");
  CHECK(text_error(replaced(kGood, "rank 1:", "rank 0:")) == "a.txt: line 7: rank 0 has a line already");
  CHECK(text_error(replaced(kGood, "rank 1:", "rank 7:")) ==
        "a.txt: line 7: rank 7 holds no stage; the stages are on ranks 0 to 1");
  CHECK(text_error(replaced(kGood, "rank 1:", "rank 1")) ==
        "a.txt: line 7: expected \"rank NUMBER: ACTIONS\"");
  CHECK(text_error(kGood.substr(0, kGood.find("rank 1"))) == "a.txt: line 6: rank 1 has no line");
  CHECK(text_error(replaced(kGood, "0 1", "0 0"))
            .find("the rank holds several stages, so the stage must stand first") != std::string::npos);
  CHECK(text_error(kGood + "kind train\n") == "a.txt: line 8: \"kind\" must stand before the ranks");
}

TEST_CASE("sizes that no program has are refused before they take the memory", "[program]") {
  // One action too many, in one line and over several.
  std::string actions;
  for (int i = 0; i < 20'000'000; ++i) actions += "F0 ";
  CHECK(text_error(replaced(kGood, "rank 0: L0", "rank 0: " + actions)) ==
        "a.txt: line 6: expected at most 20000000 actions in a program");
  CHECK(text_error(replaced(kGood, "rank 1: L0 F0 B0 L1 F1 P0 B1 S0", "rank 1: " + actions)) ==
        "a.txt: line 7: expected at most 20000000 actions in a program");
  CHECK(text_error(replaced(kGood, "groups 2", "groups 10000000x1000000"))
            .starts_with("a.txt: line 5: expected at most 10000000 micro-batches"));
  CHECK(text_error(replaced(kGood, "0 1", "0 2147483647"))
            .starts_with("a.txt: line 6: stage 1 is on rank 2147483647"));

  const auto json_text_error = [](const std::string& text) {
    return message_of([&] { (void)program_from_json(json::parse_text(text, "a.json"), "a.json"); });
  };
  // Time must grow with the length, not with its square: this took minutes.
  std::string lists;
  for (int i = 0; i < 500'000; ++i) lists += "[], ";
  CHECK(json_text_error("{\"stages\": [[0]], \"group_sizes\": [1], \"ranks\": [" + lists + "[]]}") ==
        "a.json: /ranks: expected one list for each of the 1 ranks of the stages, found 500001");
  const std::string deep(1'000'000, '[');
  CHECK(json_text_error("{\"ranks\": " + deep + "}") ==
        "a.json: /ranks/0/0/0/0/0/0/0/...: is nested more than 100 deep");
  CHECK(json_text_error("{\"stages\": [[0, 2147483647]], \"group_sizes\": [1], \"ranks\": [[]]}")
            .starts_with("a.json: stage 0 is on rank 2147483647"));
  CHECK(json_text_error("{\"stages\": [[0]], \"group_sizes\": [2000000000, 2000000000], \"ranks\": [[]]}")
            .starts_with("a.json: expected at most 10000000 micro-batches"));
}

TEST_CASE("a schedule's name is a word that both forms can carry", "[program]") {
  CHECK(text_error(replaced(kGood, "mine", "m\xffne"))
            .starts_with("a.txt: line 2: expected a name of visible ASCII"));
  for (const char* name : {"", "two words", "line\nbreak", "a#b", "\u00e9"}) {
    INFO(name);
    CHECK(json_error("/schedule", name).starts_with("a.json: /schedule: expected a word of visible ASCII"));
  }
}

TEST_CASE("garbage is an InputError, never a crash", "[program]") {
  REQUIRE(rc::check([] {
    std::string text = to_text(random_program().program);
    const int edits = *rc::gen::inRange(1, 6);
    for (int e = 0; e < edits && !text.empty(); ++e) {
      const auto at = static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(text.size())));
      switch (*rc::gen::inRange(0, 3)) {
        case 0:
          text[at] = static_cast<char>(*rc::gen::inRange(0, 256));
          break;
        case 1:
          text.erase(at, static_cast<std::size_t>(*rc::gen::inRange(1, 20)));
          break;
        default:
          text.insert(at, *rc::gen::element<std::string>("9", "99999999999", "\n", " ", "v", ",", "x", "-1"));
      }
    }
    try {
      const auto program = program_from_text(text, "x");
      RC_ASSERT(program_from_text(to_text(program), "x") == program);  // what is accepted is understood
    } catch (const InputError&) {
    }
  }));
}

TEST_CASE("bad JSON is refused with file and pointer", "[program]") {
  CHECK(json_error("/kind", "tain").find("a.json: /kind: expected one of") == 0);
  CHECK(json_error("/extra", 1).find("a.json: /extra: unknown key") == 0);
  CHECK(json_error("/stages/1/0", 5).find("a.json: stage 1 is on rank 5") == 0);
  CHECK(json_error("/stages/1/0", -1).find("a.json: /stages/1/0: expected at least 0") == 0);
  CHECK(json_error("/group_sizes/0", 0) == "a.json: expected at least 1 micro-batch in each group, found 0");
  CHECK(json_error("/ranks", Json::array()) ==
        "a.json: /ranks: expected one list for each of the 2 ranks of the stages, found 0");
  CHECK(json_error("/ranks/1/2/op", "wait_send") ==
        "a.json: /ranks/1/2/op: \"wait_send\" is added by lowering, and not for a schedule to say");
  CHECK(json_error("/ranks/1/2/op", "step") == "a.json: /ranks/1/2/micro_batch: step has no micro_batch");
  CHECK(json_error("/ranks/1/2/micro_batch", 2) ==
        "a.json: /ranks/1/2/micro_batch: micro-batch 2 is not in the program, which has 2 of them");
  CHECK(json_error("/ranks/1/2/micro_batch", 1e10).find("a.json: /ranks/1/2/micro_batch: expected") == 0);
  CHECK(json_error("/ranks/1/2/group", 1).find("a.json: /ranks/1/2/group: group 1 is not") == 0);
  CHECK(json_error("/ranks/1/2/stage", nullptr) == "a.json: /ranks/1/2/stage: backward needs a stage");
}

TEST_CASE("JSON defaults are those of the text", "[program]") {
  const auto program = program_from_json(
      json::parse_text(
          R"({"stages":[[0]],"group_sizes":[1,1],"ranks":[[{"op":"forward","stage":0,"micro_batch":1},
                           {"op":"step","stage":0,"group":1}]]})",
          "x"),
      "x");
  CHECK(program.schedule == "custom");
  CHECK(program.ranks[0][0].version == Version{0});
  CHECK(program.ranks[0][0].group == Group{1});
  CHECK(program.ranks[0][1].version == Version{1});
}

TEST_CASE("placements and groups answer by number", "[program]") {
  const Placement placement = placement_of_widths({2, 3, 1});
  CHECK(placement.world() == 6);
  CHECK(placement.rank_of(StageId{1}, MicroBatch{4}) == Rank{3});
  CHECK(placement.stages_of(Rank{5}) == std::vector<StageId>{StageId{2}});
  const ProgramHeader header{.schedule = "x", .placement = placement, .group_sizes = {2, 3, 1}};
  CHECK(header.micro_batches() == 6);
  CHECK(header.group_of(MicroBatch{1}) == Group{0});
  CHECK(header.group_of(MicroBatch{4}) == Group{1});
  CHECK(!header.group_of(MicroBatch{6}).valid());
  CHECK(header.first_of(Group{2}) == MicroBatch{5});
  for (int i = 0; i < 6; ++i) {
    CHECK(header.groups_by_micro_batch()[static_cast<std::size_t>(i)] == header.group_of(MicroBatch{i}));
  }
}

TEST_CASE("actions and tags read like sentences", "[program]") {
  CHECK(describe_action({.op = Op::forward, .stage = StageId{1}, .micro_batch = MicroBatch{3}}) ==
        "forward of micro-batch 3 on stage 1");
  CHECK(describe_action(
            {.op = Op::backward, .stage = StageId{1}, .micro_batch = MicroBatch{3}, .version = Version{2}}) ==
        "backward of micro-batch 3 on stage 1 with version 2");
  const Tag tag = Tag::activation(StageId{0}, MicroBatch{3});
  CHECK(describe_action({.op = Op::wait_receive, .tag = tag, .slot = Slot{2}}) ==
        "wait for activation 3 from stage 0 to stage 1 in slot 2");
  CHECK(describe_tag(Tag::loss(StageId{2}, Group{4}, 1)) == "loss of group 4 (1) from stage 2 to stage 0");
}

TEST_CASE("a tag has what its kind has, and refuses to be asked for the rest", "[program]") {
  const Tag gradient = Tag::gradient(StageId{2}, MicroBatch{3});
  const Tag loss = Tag::loss(StageId{2}, Group{4}, 1);
  const Tag reduction = Tag::reduction(StageId{2}, Group{5}, 1);
  CHECK((gradient.micro_batch() == MicroBatch{3} && gradient.tensor() == 0 && gradient.to == StageId{1}));
  CHECK((loss.group() == Group{4} && loss.replica() == 1 && loss.is_loss() && !gradient.is_loss()));
  CHECK((reduction.group() == Group{5} && reduction.phase() == 1 && reduction.is_reduction()));
  CHECK(!gradient.is_reduction());
  for (const Tag& tag : {loss, reduction}) {
    CHECK_THROWS_AS((void)tag.micro_batch(), InternalError);
    CHECK_THROWS_AS((void)tag.tensor(), InternalError);
  }
  for (const Tag& tag : {gradient, reduction}) CHECK_THROWS_AS((void)tag.replica(), InternalError);
  for (const Tag& tag : {gradient, loss}) CHECK_THROWS_AS((void)tag.phase(), InternalError);
  CHECK_THROWS_AS((void)gradient.group(), InternalError);
}

TEST_CASE("two ranks talk over the innermost level that holds both", "[program]") {
  const Link inner{Seconds{1e-6}, 1e10};
  const Link outer{Seconds{1e-4}, 1e9};
  const Network network{{{4, inner}, {2, outer}}};
  CHECK(network.between(Rank{1}, Rank{3}).latency == inner.latency);
  CHECK(network.between(Rank{5}, Rank{7}).latency == inner.latency);
  CHECK(network.between(Rank{3}, Rank{4}).latency == outer.latency);
  CHECK(network.between(Rank{7}, Rank{0}).latency == outer.latency);
  CHECK(message_of([&] { (void)network.between(Rank{0}, Rank{8}); }).find("rank 8 is needed") !=
        std::string::npos);
}

}  // namespace stagecraft
