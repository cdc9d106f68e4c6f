/*
 * The guest of the migration test, a Multiboot kernel: fills 32 MiB with values that differ, then
 * changes the first MiB of them again and again, and writes one character to the serial port after
 * each round.
 */
	.set	MULTIBOOT_MAGIC, 0x1badb002
	.set	START, 0x200000
	.set	CHANGED_END, 0x300000
	.set	END, 0x2200000
	.set	SERIAL_PORT, 0x3f8

	.section .text
	.balign	4
	.long	MULTIBOOT_MAGIC, 0, -MULTIBOOT_MAGIC

	.globl	_start
_start:
	cld
	mov	$START, %edi
	mov	$1, %eax
fill:
	imul	$1664525, %eax, %eax
	add	$1013904223, %eax
	stosl
	cmp	$END, %edi
	jb	fill
round:
	mov	$START, %edi
change:
	addl	$3, (%edi)
	add	$4, %edi
	cmp	$CHANGED_END, %edi
	jb	change
	mov	$SERIAL_PORT, %dx
	mov	$'.', %al
	outb	%al, %dx
	jmp	round
