#pragma once

#include "schedules/program/action.h"

namespace stagecraft::test {

/// Of a transfer from rank 0 to rank 1.
inline const Tag kActivationTag{
    .payload = Payload::activation, .from = StageId{0}, .to = StageId{1}, .number = 7};

}  // namespace stagecraft::test
