#include "schedules/checker/moments.h"

#include <algorithm>

namespace stagecraft::checker {

MicroBatchMoments moments_of(const ProgramIndex& index, StageId stage, MicroBatch mb) {
  const StageId previous{stage.value - 1}, next{stage.value + 1};
  const MicroBatchPlaces& work = index.work(stage, mb);
  MicroBatchMoments moments;
  Situation& here = moments.here;
  here = {.first = stage.value == 0, .last = index.is_last(stage), .training = index.trains(stage)};
  here.begins = !index.program().sends_gradient(stage);
  here.recomputed = work.recompute.found();
  here.from_here = !here.first && index.hand_off(stage, previous, mb);
  here.to_here = !here.last && index.hand_off(stage, next, mb);

  const auto end = [&](Moment moment) -> std::int32_t& {
    return moments.ends[static_cast<std::size_t>(moment)];
  };
  const bool loads = index.program().loads(stage);
  end(Moment::load) = (loads ? index.load(stage, mb) : work.forward).at;
  end(Moment::forward) = work.forward.at;
  end(Moment::recompute) = work.recompute.at;
  end(Moment::backward_input) = (here.training ? work.input_part : work.forward).at;
  end(Moment::backward_weight) = last_use(index, stage, mb);
  if (here.to_here) {
    end(Moment::next_backward_weight) = last_use(index, next, mb);
    end(Moment::output_unused) = std::max(end(Moment::backward_input), last_use(index, next, mb));
  } else if (!here.last) {
    end(Moment::activation_sent) = index.transfer(Tag::activation(stage, mb)).wait_send.at;
  }
  if (here.from_here) {
    end(Moment::previous_backward_weight) = last_use(index, previous, mb);
  } else if (here.training && !here.begins) {
    end(Moment::gradient_sent) = index.transfer(Tag::gradient(stage, mb)).wait_send.at;
  }
  return moments;
}

std::int32_t last_use(const ProgramIndex& index, StageId stage, MicroBatch mb) {
  const MicroBatchPlaces& work = index.work(stage, mb);
  return (index.trains(stage) ? work.weight_part : work.forward).at;
}

}  // namespace stagecraft::checker
