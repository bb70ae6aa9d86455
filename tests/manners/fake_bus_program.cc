// A fake bus for scripts: fake_bus SOCKET. Prints its address; each line of standard input sets what a
// service says ("idle 1", "games 2", "sleep 1", "delayed" asks whether the machine is kept awake), and is
// answered.
#include <cstdio>
#include <iostream>
#include <string>

#include "tests/manners/fake_bus.h"

int main(int argc, char** argv) {
  if (argc != 2 || !weft::test::FakeBus::is_there()) return 77;
  weft::test::FakeBus bus(argv[1]);
  std::printf("%s\n", bus.address().c_str());
  std::fflush(stdout);
  std::string what;
  while (std::cin >> what) {
    int value = 0;
    if (what == "delayed")
      value = bus.is_delayed() ? 1 : 0;
    else if (!(std::cin >> value))
      return 2;
    if (what == "idle") bus.idle = value != 0;
    if (what == "games") bus.games = value;
    if (what == "sleep") bus.about_to_sleep = value != 0;
    std::printf("%s %d\n", what.c_str(), value);
    std::fflush(stdout);
  }
  return 0;
}
