// What is printed of the command definitions: nothing of them is left out, and each reader can read it.
#include "cli/reference.h"

#include <gtest/gtest.h>

#include "cli/command_line.h"
#include "tests/cli/process.h"
#include "tests/support/scratch.h"

namespace weft::cli {
namespace {

class ReferenceTest : public testing::Test {
 protected:
  ReferenceTest() {
    const CommandLine run = line_.subcommand("run", "run a job, it's said; at once");
    run.option("job", job_, "the job's file [YAML]").required();
    run.option("-o,--output", output_, "where to").required();
    run.option("--format", format_, "for people, or programs").one_of({"text", "json"}).shows_default();
    run.option("--count", count_, "how many").shows_default();
    run.flag("-v,--verbose", verbose_, "show all: more");
    line_.subcommand("worker", "not for people").hide();
    const CommandLine token = line_.subcommand("token", "make tokens");
    token.subcommand("create", "make one").option("--role", role_, "whom it lets in");
    line_.group("Jobs", {"run"});
    line_.group("Brokers", {"token"});
  }
  // What bash offers for the last of these words.
  std::string offered(const std::string& words) {
    const test::Scratch scratch;
    const auto script = scratch.write("c.bash", bash_completion(line_.words()));
    test::Process bash({"-c", "cd /nowhere 2>/dev/null; . " + script.string() + "; COMP_WORDS=(" + words +
                                  "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _weft; echo ${COMPREPLY[@]}"},
                       scratch.folder() / "err", {}, "/bin/bash");
    return bash.line().value_or("nothing");
  }

  Program program_{"trains"};
  const CommandLine line_ = program_.line();
  std::string job_, output_, format_ = "text", role_;
  uint32_t count_ = 7;
  bool verbose_ = false;
};

TEST_F(ReferenceTest, WordsHaveEverythingButWhatIsHidden) {
  const CommandWords words = line_.words();
  ASSERT_EQ(words.commands.size(), 2u);
  const CommandWords& run = words.commands[0];
  EXPECT_EQ(run.group, "Jobs");
  ASSERT_EQ(run.options.size(), 6u) << "and --help";
  EXPECT_TRUE(run.options[1].positional && run.options[1].required);
  EXPECT_EQ(run.options[2].names, (std::vector<std::string>{"-o", "--output"}));
  EXPECT_EQ(run.options[3].choices, (std::vector<std::string>{"text", "json"}));
  EXPECT_EQ(run.options[3].initial, "text");
  EXPECT_EQ(run.options[4].value, "N");
  EXPECT_EQ(run.options[4].initial, "7");
  EXPECT_EQ(run.options[5].value, "") << "a flag";
  EXPECT_EQ(words.commands[1].commands[0].name, "create");
}

TEST_F(ReferenceTest, MarkdownHasEachCommandUnderItsGroup) {
  const std::string text = as_markdown(line_.words());
  const char* parts[] = {
      "## Jobs\n",
      "### weft run\n\nRun a job, it's said; at once.\n\n    weft run JOB --output TEXT [OPTION...]\n",
      "- `-o, --output TEXT`: where to (required)\n",
      "- `--format text|json`: for people, or programs; default: text\n",
      "- `-v, --verbose`: show all: more\n",
      "## Brokers\n",
      "### weft token create\n"};
  size_t at = 0;
  for (const char* part : parts) {
    at = text.find(part, at);
    ASSERT_NE(at, std::string::npos) << part << "\nis not in, or not in this place of\n" << text;
  }
  EXPECT_EQ(text.find("worker"), std::string::npos);
}

TEST_F(ReferenceTest, BashOffersOptionsAndChoices) {
  EXPECT_EQ(offered("weft ''"), "run token -h --help");
  EXPECT_EQ(offered("weft r"), "run");
  EXPECT_EQ(offered("weft run --f"), "--format");
  EXPECT_EQ(offered("weft run --format j"), "json");
  EXPECT_EQ(offered("weft token c"), "create");
  EXPECT_EQ(offered("weft token create --r"), "--role");
  EXPECT_EQ(offered("weft run --output /etc/os-rel"), "/etc/os-release");
  EXPECT_EQ(offered("weft run /etc/os-rel"), "/etc/os-release");
  EXPECT_EQ(offered("weft worker --x"), "") << "what is hidden is not known";
}

TEST_F(ReferenceTest, TheManualPageIsReadWithoutWarnings) {
  const test::Scratch scratch;
  const auto page = scratch.write("weft.1", as_man_page(line_.words(), "1.2.3"));
  if (access("/usr/bin/groff", X_OK) != 0) GTEST_SKIP() << "no groff";
  auto groff = test::Process({"-man", "-Tascii", "-P-cbou", "-ww", page.string()}, scratch.folder() / "err",
                             {}, "/usr/bin/groff")
                   .finish();
  EXPECT_EQ(groff.status, 0);
  EXPECT_EQ(groff.err, "");
  EXPECT_NE(groff.out.find("EXIT STATUS"), std::string::npos);
  EXPECT_NE(groff.out.find("it's said"), std::string::npos) << groff.out;
}

// Of the whole program: what a shell's own parser says of it.
TEST_F(ReferenceTest, ThePublishedScriptsAreParsed) {
  const test::Scratch scratch;
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const auto printed = test::Process({"reference", "--format", shell}, scratch.folder() / "err").finish();
    ASSERT_EQ(printed.status, 0) << printed.err;
    EXPECT_NE(printed.out.find("join-line"), std::string::npos) << shell;
    EXPECT_EQ(printed.out.find("plan-worker"), std::string::npos) << shell;
    const std::string program = std::string("/bin/") + shell;
    if (access(program.c_str(), X_OK) != 0) continue;
    const auto script = scratch.write(shell, printed.out);
    const auto parsed =
        test::Process({"-n", script.string()}, scratch.folder() / "err", {}, program.c_str()).finish();
    EXPECT_EQ(parsed.status, 0) << parsed.err;
  }
}

}  // namespace
}  // namespace weft::cli
