// Links are measured by peers that have no stage.
#include "tests/peer_machine/shell.h"

namespace weft::test {
namespace {

TEST(Probe, IsMadeByAPeerOfThePool) {
  Shell shell;
  shell.join();
  shell.say(proto::ProbeLink{.round = 3, .peer = {}});
  ASSERT_EQ(shell.probes.size(), 1u);
  EXPECT_EQ(shell.probes[0].link.round, 3u);
  shell.act(shell.peer.on_probed(shell.now, {.round = 3, .peer = {}, .bytes_per_second = 1e6}));
  ASSERT_EQ(shell.told_of<proto::ProbeReport>().size(), 1u);
  EXPECT_EQ(shell.told_of<proto::ProbeReport>()[0].bytes_per_second, 1e6);
}

TEST(Probe, IsRefusedByAPeerWithAStage) {
  for (const bool is_loaded : {false, true}) {
    Shell shell;
    shell.join();
    if (is_loaded)
      shell.load(assignment());
    else
      shell.say(assignment());
    shell.say(proto::ProbeLink{.round = 3, .peer = {}});
    EXPECT_TRUE(shell.probes.empty());
    ASSERT_EQ(shell.told_of<proto::ProbeReport>().size(), 1u);
    const proto::ProbeReport report = shell.told_of<proto::ProbeReport>()[0];
    EXPECT_EQ(report.round, 3u);
    EXPECT_EQ(report.failure.value_or(Error{}).code, ErrorCode::Cancelled);
  }
}

TEST(Probe, NothingIsToldOnceTheBrokerHasGone) {
  Shell shell;
  shell.join();
  shell.say(proto::ProbeLink{.round = 3, .peer = {}});
  shell.lose_broker();
  shell.act(shell.peer.on_probed(shell.now, {.round = 3, .peer = {}, .bytes_per_second = 1e6}));
  EXPECT_TRUE(shell.told_of<proto::ProbeReport>().empty());
}

}  // namespace
}  // namespace weft::test
