/*
 * Runs the main function of a shared object, whose libraries no other object sees, as Python loads
 * a module: load OBJECT ARGUMENT...
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	void *object = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
	int (*run)(int, char **) = object ? (__typeof__(run))dlsym(object, "main") : NULL;

	if (!run) {
		fprintf(stderr, "load: %s\n", argc > 1 ? dlerror() : "name an object");
		return 2;
	}
	return run(argc - 1, argv + 1);
}
