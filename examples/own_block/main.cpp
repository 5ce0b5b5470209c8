// The whole command line, with one's own layers in it: my_trainer train run.json

#include "llama.h"

int main(int argc, char** argv) {
  llama::register_all();
  return stagecraft::run_command_line(argc, argv);
}
