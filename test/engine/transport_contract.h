#pragma once

// What transport.h promises, as functions that every rank of a world runs. They throw std::runtime_error
// where a promise is broken. All back ends run the same ones.

#include "engine/transport/transport.h"

#include <cstdint>

namespace stagecraft::test {

/// Every rank sends to every other one, several tags at once, waited for in another order; the senders
/// overwrite their tensors as soon as they may.
void tags_match(Transport& transport);
/// Transfers of one tag arrive in the order they were begun, more of them than are waited for at once.
void equal_tags_keep_their_order(Transport& transport);
/// 64 MiB each way at once, to the byte.
void large_messages_arrive(Transport& transport, std::int64_t bytes);
/// Both ranks of a pair send before they receive; `test` and `progress` complete a transfer without a wait.
void transfers_progress(Transport& transport);
/// Texts of several pieces and of none, to each rank in turn.
void texts_are_gathered(Transport& transport);
/// A rank that starts up or saves is waited for longer than one in a step.
void phases_have_bounds(Transport& transport);
void collectives_agree(Transport& transport);
/// Questions are answered the same on all ranks, while ranks are at different ones.
void agreements_come_late(Transport& transport);
/// Under synchronous sends, start_send returns only after the receive was posted. Needs two ranks.
void synchronous_sends_block(Transport& transport);
/// post_send returns before its receive is posted, under synchronous sends too.
void posted_sends_do_not_block(Transport& transport);
/// What goes on in the background while a rank waits lets another one go on. Needs two ranks.
void background_work_goes_on(Transport& transport);

}  // namespace stagecraft::test
