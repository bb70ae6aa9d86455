// A program as its user meets it: a process, what it prints, what it returns.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

namespace weft::test {

struct Finished {
  int status = -1;
  std::string out, err;
};

// A child process whose standard output comes through a pipe and whose standard error goes to a file.
class Process {
 public:
  // Of weft, or of `program`. Variables of `environment` are "NAME=value"; "NAME" alone is taken away.
  Process(const std::vector<std::string>& arguments, const std::filesystem::path& error_file,
          const std::vector<std::string>& environment = {}, const char* program = WEFT_PROGRAM)
      : error_file_(error_file) {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe(ends.data()), 0);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[1], STDOUT_FILENO);
      if (std::freopen(error_file.c_str(), "w", stderr) == nullptr) _exit(126);
      close(ends[0]);
      close(ends[1]);
      for (const std::string& variable : environment) putenv(const_cast<char*>(variable.c_str()));
      std::vector<char*> argv{const_cast<char*>(program)};
      for (const auto& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
      argv.push_back(nullptr);
      execv(program, argv.data());
      _exit(127);
    }
    close(ends[1]);
    out_ = fdopen(ends[0], "r");
  }
  ~Process() {
    if (out_ != nullptr) fclose(out_);
  }
  // The next line, or nothing at the end.
  std::optional<std::string> line() {
    std::string text;
    for (int c = 0; (c = fgetc(out_)) != EOF && c != '\n';) text += static_cast<char>(c);
    if (text.empty() && feof(out_)) return std::nullopt;
    return text;
  }
  void signal(int number) const { kill(pid_, number); }
  void stop_reading() {  // what it prints from now on cannot be written
    fclose(out_);
    out_ = nullptr;
  }
  Finished finish() {
    Finished finished;
    for (int c = 0; out_ != nullptr && (c = fgetc(out_)) != EOF;) finished.out += static_cast<char>(c);
    int status = 0;
    waitpid(pid_, &status, 0);
    finished.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    std::ifstream errors(error_file_, std::ios::binary);
    finished.err.assign(std::istreambuf_iterator<char>(errors), {});
    return finished;
  }

 private:
  pid_t pid_ = -1;
  FILE* out_ = nullptr;
  std::filesystem::path error_file_;
};

}  // namespace weft::test
